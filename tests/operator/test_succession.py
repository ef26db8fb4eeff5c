"""Split roles that are united, and the other way: the old engines stay until the new ones can serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_objects import KEY, gpu_pool, model_pool, observed
from operator_state import pod, unplaced

from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, EngineFacts, Observed, SchedulerFacts
from aegaeon_operator.reconcile.cluster.names import labels
from aegaeon_operator.reconcile.cluster.report import reports
from aegaeon_operator.reconcile.cluster.succession import superseded

Json = dict[str, Any]
UNITED, RED = gpu_pool(), model_pool("red", "llama")
SPLIT = gpu_pool(prefill={"replicas": 1}, decode={"replicas": 1})
del SPLIT["spec"]["engines"]
OLD = ("pool-prefill", "pool-decode")
TIGHT = unplaced("pool-engine-0", "engine", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")


def united_after_split(*pods: Json) -> Observed:
    """The children are those of split roles, and the spec has one role."""
    children = [
        {**one, "metadata": {**one["metadata"], "uid": one["metadata"]["name"]}}
        for one in desired(observed(SPLIT, RED)).manifests
    ]
    placed = [{**one, "metadata": {**one["metadata"], "labels": labels(KEY, "engine")}} for one in pods]
    return observed(UNITED, RED, *children, *placed)


def attached(*roles: str) -> SchedulerFacts:
    return SchedulerFacts("one", engines=tuple(EngineFacts(role, role, True, 0, 0.0) for role in roles))


@pytest.mark.parametrize(
    ("seen", "facts", "staying"),
    [
        (united_after_split(), attached("prefill", "decode"), ("prefill", "decode")),
        (united_after_split(), None, ("prefill", "decode")),
        (united_after_split(pod("pool-engine-0", "engine")), attached("prefill", "decode"), ("prefill", "decode")),
        (united_after_split(), attached("prefill", "decode", "unified"), ()),
        (united_after_split(TIGHT), attached("prefill", "decode"), ()),
        (observed(UNITED, RED), attached("unified"), ()),
    ],
    ids=(
        "not started",
        "the scheduler does not answer",
        "not attached yet",
        "attached",
        "no room for both",
        "nothing was changed",
    ),
)
def test_old_engines_stay_until_every_new_role_has_one(
    seen: Observed, facts: SchedulerFacts | None, staying: tuple[str, ...]
) -> None:
    assert superseded(seen, facts) == staying
    seen = replace(seen, superseded=staying)
    gone = {key.name for key in desired(seen).leftovers if key.kind == "StatefulSet"}
    there = {key.name for key in seen.children if key.kind == "StatefulSet"}
    assert gone == (set() if staying else there - {"pool-engine"})


def test_a_pool_is_not_called_unready_while_its_old_engines_serve() -> None:
    seen = replace(united_after_split(), superseded=("prefill", "decode"), scheduler=attached("prefill", "decode"))
    (found,) = (one for one in reports(seen, desired(seen), {}) if one.about.kind == "GpuPool")
    assert {one["type"]: one["status"] for one in found.status["conditions"]}["EnginesReady"] == "True"


def test_all_of_a_superseded_role_stays() -> None:
    seen = replace(united_after_split(), superseded=("prefill", "decode"))
    gone = set(desired(seen).leftovers)
    assert not gone & {ChildKey(kind, "infra", name) for kind in ("StatefulSet", "Service") for name in OLD}
