"""Each attack alone, for a few seconds: the innocent tenant beside it must not notice.

`make attacks MINUTES=n` runs all of them at once. Time between tokens is measured against a quiet time of the same
stack; a machine that does something else can only lengthen it, so the best of a few tries counts, each further one
beside a quiet time right before it. Nothing else has a second try.
"""

from __future__ import annotations

import pytest
from attacks import bars
from attacks.arena import Arena
from attacks.campaign import PACE_S, Outcome
from attacks.table import ATTACKS

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

QUIET_S = 4.0
ATTACK_S = 3.0
TRIES = 3


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_innocent_tenant_does_not_notice(arena: Arena, name: str) -> None:
    for _ in range(TRIES):
        outcome = await arena.attack([ATTACKS[name]], quiet_s=QUIET_S, seconds=ATTACK_S, pace=PACE_S)
        summary = outcome.line()
        harmed = sorted({*outcome.problems, *outcome.harm})
        assert not harmed, f"{harmed[:5]}\n{summary}"
        assert not outcome.dead, summary
        assert outcome.memory_bytes <= bars.GATEWAY_BYTES, summary
        assert outcome.picker_bytes <= bars.PICKER_BYTES, summary
        if keeps_time(outcome, shares=ATTACKS[name].computes):
            return
        arena.forget_quiet()
    pytest.fail(f"{TRIES} times: {summary}\n{[one.name for one in outcome.longest]}")


def keeps_time(outcome: Outcome, *, shares: bool) -> bool:
    """What a busy machine may spoil. `shares`: the engines' time is shared with it, see Attack.computes."""
    steady = outcome.ratio <= bars.TBT_RATIO and outcome.during.longest_s <= bars.STALL_S
    return not outcome.late and (steady or shares) and outcome.longest_cpu_s <= bars.CALLBACK_S
