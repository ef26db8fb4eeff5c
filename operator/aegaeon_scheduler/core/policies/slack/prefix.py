"""Where prompts go that begin as others did: to the engine whose prefix cache has their beginning, while there is time.

A group that waits has a home, the engine with most of its model's conversations in its cache, and waits for that one
alone until little of its slack is left: elsewhere they would be computed again, and be scattered further.
"""

from __future__ import annotations

from aegaeon_scheduler.core.estimate import Estimates
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import ENGINE_PRICE, PREEMPT_SHARE
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Sequence

HOME_SHARE = 0.005
"""of TTFT: what is cached of a model must save so much for one of its groups to wait for that engine"""
STAY_SHARE = 2 * HOME_SHARE
"""of TTFT: what is cached of a prompt must save so much for it to join a group where others would begin a new one"""


def home(pool: Pool, table: Table, group: Group, node: str | None, key: float) -> Instance | None:
    """Returns the instance that a group waits for which is due at `key` and bound to a node; None: it takes any."""
    slo, cached = group.model.config.slo, pool.prefixes.tokens(group.model.name)
    if not cached or key - pool.now < PREEMPT_SHARE * slo.ttft_s or group.late(pool.now):
        return None
    living = ((tokens, pool.instances[e.instance]) for e, tokens in cached.items() if e.lives(pool.instances))
    places = [(t, inst) for t, inst in living if node in (None, inst.node) and group.may_go(inst)]
    tokens, inst = max(places, key=lambda place: (place[0], place[1].id), default=(0, None))
    if inst is None or group.model.name in table.row(inst).models:
        return None  # it has a group there, so this one is to be elsewhere
    saved_s = pool.estimates.of(group.model.name, inst.device).prefill_s(tokens)
    return inst if saved_s > HOME_SHARE * slo.ttft_s else None


def pull(estimates: Estimates, seq: Sequence, inst: Instance) -> float:
    """Utilization that the cached beginning of a prompt is worth on an instance."""
    cached = seq.cached_on(inst)
    if not cached:
        return 0.0
    saved_s = estimates.of(seq.model.name, inst.device).prefill_s(cached)
    return ENGINE_PRICE * saved_s / max(seq.model.config.slo.ttft_s, 1e-9)
