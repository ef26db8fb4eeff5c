"""A few attacks at once, for a few seconds: the innocent tenant beside them must not notice.

`make attacks MINUTES=n` runs all of them at once. Time between tokens is measured against a quiet time of the same
stack. Where a group of attacks takes more of it than allowed, which several may do on two processors, each of the group
is made alone, and must not. A machine that does something else can only lengthen it, so the best of a few tries counts,
each further one beside a quiet time right before it. Nothing else has a second try.
"""

from __future__ import annotations

import pytest
from attacks import bars
from attacks.arena import Arena
from attacks.campaign import PACE_S, Outcome
from attacks.table import ATTACKS, Attack

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

QUIET_S = 4.0
ATTACK_S = 3.0
TRIES = 3
AT_ONCE = 6


def groups() -> list[list[Attack]]:
    """Neighbours in the table; those that take all of something that they are given are alone."""
    alone = [[one] for one in ATTACKS.values() if one.computes or one.occupies]
    others = [one for one in ATTACKS.values() if not (one.computes or one.occupies)]
    return alone + [others[i : i + AT_ONCE] for i in range(0, len(others), AT_ONCE)]


@pytest.mark.parametrize("group", groups(), ids=lambda group: "+".join(one.name for one in group))
async def test_an_innocent_tenant_does_not_notice(arena: Arena, group: list[Attack]) -> None:
    if len(group) == 1 or not keeps_time(await harmless(arena, group), shares=False):
        for one in group:
            await in_time(arena, one)


async def in_time(arena: Arena, one: Attack) -> None:
    """Fails when each of TRIES takes too much of the innocent tenant's time."""
    for _ in range(TRIES):
        outcome = await harmless(arena, [one])
        if keeps_time(outcome, shares=one.computes):
            return
        arena.forget_quiet()
    pytest.fail(f"{TRIES} times: {outcome.line()}\n{[one.name for one in outcome.longest]}")


async def harmless(arena: Arena, attacks: list[Attack]) -> Outcome:
    """What nothing but an attack can spoil is asserted."""
    outcome = await arena.attack(attacks, quiet_s=QUIET_S, seconds=ATTACK_S, pace=PACE_S)
    summary = outcome.line()
    harmed = sorted({*outcome.problems, *outcome.harm})
    assert not harmed, f"{harmed[:5]}\n{summary}"
    assert not outcome.dead, summary
    assert outcome.memory_bytes <= bars.GATEWAY_BYTES, summary
    assert outcome.picker_bytes <= bars.PICKER_BYTES, summary
    return outcome


def keeps_time(outcome: Outcome, *, shares: bool) -> bool:
    """What a busy machine may spoil. `shares`: the engines' time is shared with it, see Attack.computes."""
    steady = outcome.ratio <= bars.TBT_RATIO and outcome.during.longest_s <= bars.STALL_S
    return not outcome.late and (steady or shares) and outcome.longest_cpu_s <= bars.CALLBACK_S
