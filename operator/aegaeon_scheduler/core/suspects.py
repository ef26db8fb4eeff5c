"""Runs suspects alone, to find the sequence that makes engines fail and to end only that one.

Any sequence that ran when an engine or a turn failed may be the cause. After a second failure in a row it gets turns
of its own on an otherwise empty lane: an innocent sequence makes progress and is cleared, the cause fails alone.
"""

from __future__ import annotations

from collections.abc import Container

from aegaeon_scheduler.core.domain import SeqId
from aegaeon_scheduler.core.policies import Proposal
from aegaeon_scheduler.core.state import Sequence


def isolate(proposal: Proposal, suspects: Container[SeqId], most_steps: int) -> bool:
    """Cut a proposal down to one suspect or to those who are none, whichever is due first. True: it is a suspect's.

    A suspect runs `most_steps` at most: its company waits meanwhile.
    """
    first = proposal.prefill[0] if proposal.prefill else min(proposal.decode, key=Sequence.deadline)
    if first.id not in suspects:
        proposal.prefill = tuple(seq for seq in proposal.prefill if seq.id not in suspects)
        proposal.decode = [seq for seq in proposal.decode if seq.id not in suspects]
        return False
    proposal.prefill, proposal.decode = ((first,), []) if proposal.prefill else ((), [first])
    proposal.steps = min(proposal.steps, most_steps)
    return True
