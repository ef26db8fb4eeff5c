"""One pass over the pool: waiting groups are placed where there is room, else preempt the groups with the most slack.

Order: empty instances that drain, relieve those that hold too much, unite groups of a model, place what
waits, even out load.
"""

from __future__ import annotations

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.drain import drain
from aegaeon_scheduler.core.policies.slack.picture import Picture, Waiting
from aegaeon_scheduler.core.policies.slack.place import place_waiting
from aegaeon_scheduler.core.policies.slack.rebalance import rebalance
from aegaeon_scheduler.core.policies.slack.relieve import relieve
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.policies.slack.unite import unite
from aegaeon_scheduler.core.pool import Pool


def run_pass(pool: Pool, settings: SlackSettings, table: Table, now: float) -> list[Move]:
    """The moves of one pass, most urgent first."""
    table.reap()
    table.recast()
    if not table.groups:
        return []
    picture = Picture(pool, settings, table, now)
    drain(picture)
    relieve(picture)
    unite(picture)
    line = place_waiting(picture)
    rebalance(picture)
    if pool.config.admission != "none":
        _note_line(picture, line)
    return picture.moves


def _note_line(picture: Picture, line: list[Waiting]) -> None:
    """For admission control: what still waits, and how many were placed."""
    late_s, now = picture.settings.late_slack_s, picture.now
    waiting = [group for _, _, group, _ in line if group.inst is None]
    keys = [(g.model.config.terms.tier.level, g.urgency(now, late_s)[0]) for g in waiting]
    placed = sum(1 for move in picture.moves if move.instance is not None)
    picture.table.line.passed(sorted(keys), placed, now)
