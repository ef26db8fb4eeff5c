"""One pass over the pool: waiting groups are placed where there is room, else preempt the groups with the most slack.

Order: empty instances that drain, relieve those that hold too much, unite groups of a model, place what
waits, even out load.
"""

from __future__ import annotations

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.drain import drain
from aegaeon_scheduler.core.policies.slack.picture import Picture
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
    table.split_by_adapter()
    table.rescale()
    if not table.groups:
        return []
    picture = Picture(pool, settings, table, now)
    drain(picture)
    relieve(picture)
    unite(picture)
    place_waiting(picture)
    rebalance(picture)
    return picture.moves
