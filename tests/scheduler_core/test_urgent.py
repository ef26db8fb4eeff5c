"""Which groups that wait have little slack is kept; it is what a look at all of them finds, at any time."""

from __future__ import annotations

import random

import pytest
from small_world import small_world

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.commands import Command
from aegaeon_scheduler.core.config import SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ModelName, Role
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import due
from aegaeon_scheduler.core.policies.slack.policy import SlackPolicy
from aegaeon_scheduler.core.policies.slack.ranks import URGENT_SHARE


def has_little(group: Group, now: float, settings: SlackSettings) -> bool:
    """Return whether a group has little slack, by its members, one by one."""
    dues = [due(seq) for seq in group.members.values()]
    key = min((at for at in dues if at >= now), default=float("inf"))
    if any(at < now for at in dues):
        key = min(key, now + settings.late_slack_s)
    return key - now < URGENT_SHARE * group.model.config.slo.ttft_s


@pytest.mark.parametrize("late_slack_s", [20.0, 0.3])  # more, and less, than the share of TTFT that is little
@pytest.mark.parametrize("seed", range(2))
def test_it_finds_what_a_look_at_all_groups_that_wait_finds(seed: int, late_slack_s: float) -> None:
    settings = SlackSettings(late_slack_s=late_slack_s)
    seen = {True: 0, False: 0}

    def compare(now: float, event: ev.Event, commands: list[Command]) -> None:
        policy = world.scheduler._policy
        assert isinstance(policy, SlackPolicy)
        table = policy._table
        expected = any(has_little(group, now, settings) for group in table.waiting.values())
        assert table.urgent.any(now) is expected
        seen[expected] += bool(table.waiting)

    world = small_world(roles=[Role.UNIFIED] * 2, config=SchedulerConfig(policy=settings), models=12)
    world.observe = compare
    rng = random.Random(seed)
    for i in range(400):
        name = ModelName(f"m{rng.randrange(12)}")
        world.request(f"r{i}", name, rng.randrange(1, 60), rng.randrange(1, 200), rng.uniform(0.0, 12.0))
    world.run(until=60.0)
    assert min(seen.values()) > 30
