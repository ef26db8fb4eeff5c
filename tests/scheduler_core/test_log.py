"""The event log round-trips every type, and replay finds the first difference."""

from __future__ import annotations

import json
import typing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_world import small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import (
    ConstantsOf,
    LatencyConstants,
    PaperSettings,
    PrismSettings,
    SchedulerConfig,
    SlackSettings,
)
from aegaeon_scheduler.core.domain import ModelName, Role
from aegaeon_scheduler.core.errors import LogError
from aegaeon_scheduler.core.log import LogWriter, decode, encode, read, replay

for_types = {t.__name__: t for t in (*typing.get_args(ev.Event), *typing.get_args(cmd.Command))}


@pytest.mark.parametrize("name", sorted(for_types))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_event_and_command_survives_the_log(name, data):
    kind = for_types[name]
    value = data.draw(st.from_type(kind).filter(lambda v: "nan" not in repr(v).replace("tenant", "")))
    text = json.dumps(encode(value))
    assert decode(json.loads(text), kind) == value


@pytest.mark.parametrize(
    "policy", [PaperSettings(q_max_s=2.5), SlackSettings(min_stay_s=2.5), PrismSettings(interval_s=2.5)]
)
def test_a_configuration_survives_the_header(policy):
    config = SchedulerConfig(policy=policy, constants=(ConstantsOf("m", "d", LatencyConstants(a=0.5)),), hold_s=7.0)
    assert decode(json.loads(json.dumps(encode(config))), SchedulerConfig) == config


def _recorded(path):
    config = SchedulerConfig()
    with path.open("w") as out:
        writer = LogWriter(out, config, "test")
        world = small_world([Role.PREFILL, Role.DECODE], slabs=160, config=config, observe=writer.write)
        for i in range(12):
            world.request(f"r{i}", ModelName(f"m{i % 4}"), 20 + i, 5 + i, 0.1 * i)
        world.run(60.0)


def test_a_log_replays_to_the_same_commands(tmp_path):
    path = tmp_path / "log.jsonl"
    _recorded(path)
    result = replay(path)
    assert result.same, result.difference
    assert result.events == sum(1 for _ in read(path)) > 100


def test_replay_names_the_first_difference(tmp_path):
    path = tmp_path / "log.jsonl"
    _recorded(path)
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"_":"Turn"' in line)
    lines[at] = lines[at].replace('"steps":0', '"steps":7', 1)
    path.write_text("\n".join(lines) + "\n")
    result = replay(path)
    assert not result.same
    assert "steps=7" in result.difference
    assert result.events == at


def test_a_truncated_line_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "log.jsonl"
    _recorded(path)
    text = path.read_text()
    path.write_text(text[: len(text) - 20])
    with pytest.raises(LogError, match="line"):
        replay(path)
