"""Engines of a run on the production core: where they stand."""

from __future__ import annotations

from collections import Counter

import pytest

from aegaeon_scheduler.core.domain import ModelName, Role, Slo
from aegaeon_simulator.devices import Machines, read_device
from aegaeon_simulator.pool.production import _engines
from aegaeon_simulator.settings import Settings, Split


@pytest.mark.parametrize(("split", "prefill"), [(Split(6, 10), 3), (Split(3, 13), 1)])
def test_every_node_can_hand_its_prompts_to_engines_of_its_own(split: Split, prefill: int) -> None:
    machines = Machines.of(read_device("h800-policy"), ())
    specs = _engines(Settings("paper", split, Slo(10.0, 0.1)), machines, {ModelName("m"): "qwen2_5_7b"})
    found = Counter((spec.node, spec.role) for spec in specs)
    assert {node for node, _ in found} == {"node-0", "node-1"}
    assert min(found["node-0", Role.PREFILL], found["node-1", Role.PREFILL]) == prefill
    assert min(found["node-0", Role.DECODE], found["node-1", Role.DECODE]) == split.decode // 2


def test_engines_without_roles_fill_one_node_after_the_other() -> None:
    machines = Machines.of(read_device("h800-policy"), ())
    specs = _engines(Settings("slack", Split(unified=12), Slo(10.0, 0.1)), machines, {ModelName("m"): "qwen2_5_7b"})
    assert [spec.node for spec in specs] == ["node-0"] * 8 + ["node-1"] * 4
