"""Suspects run alone, so that the sequence that makes engines fail is found, and only it is given up.

Who ran when an engine died, or when a turn failed, may be the cause or its company. After a second time in a row it
gets turns of its own, on a lane with nothing else on it: company makes progress and is cleared, the cause fails alone.
"""

from __future__ import annotations

from collections.abc import Container

from aegaeon_scheduler.core.domain import SeqId
from aegaeon_scheduler.core.policies import Plan
from aegaeon_scheduler.core.state import Sequence


def isolate(plan: Plan, suspects: Container[SeqId], most_steps: int) -> bool:
    """Cut a plan down to one suspect or to those who are none, whichever is due first. True: it is a suspect's.

    A suspect runs `most_steps` at most: its company waits meanwhile.
    """
    first = plan.prefill[0] if plan.prefill else min(plan.decode, key=Sequence.deadline)
    if first.id not in suspects:
        plan.prefill = tuple(seq for seq in plan.prefill if seq.id not in suspects)
        plan.decode = [seq for seq in plan.decode if seq.id not in suspects]
        return False
    plan.prefill, plan.decode = ((first,), []) if plan.prefill else ((), [first])
    plan.steps = min(plan.steps, most_steps)
    return True
