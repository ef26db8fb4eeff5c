"""The order in which a group's prompts begin: first come first served, but for what is deferred, and for priorities.

A priority counts among the requests of its tenant alone. Of the places that they have in the queue the first goes to
the one of the lowest number, and the one that had it takes the other place. So whatever numbers a tenant gives, all
others begin when they would have begun without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.sequences import member
from aegaeon_scheduler.core.state import Sequence


def in_order(group: Group) -> Iterable[Sequence]:
    """The prompts that are still to be issued, the next one first."""
    return by_rank(group.prompts.values()) if group.standing.ranked else group.prompts.values()


def by_rank(prompts: Iterable[Sequence]) -> Iterator[Sequence]:
    """The same of prompts of one model."""
    places = sorted(prompts, key=_place)
    queues: dict[tuple[str, bool], list[Sequence]] = defaultdict(list)
    for seq in places:
        queues[_queue(seq)].append(seq)
    turns = {key: iter(sorted(queue, key=lambda seq: seq.priority)) for key, queue in queues.items()}
    return (next(turns[_queue(seq)]) for seq in places)


def begun(seq: Sequence, prompts: Iterable[Sequence]) -> None:
    """One of these prompts is issued, in the first place of its tenant."""
    first = min((other for other in prompts if _queue(other) == _queue(seq)), key=_place)
    member(first).queue_place, member(seq).queue_place = member(seq).queue_place, member(first).queue_place


def _place(seq: Sequence) -> tuple[bool, int]:
    return seq.deferred, member(seq).queue_place


def _queue(seq: Sequence) -> tuple[str, bool]:
    return seq.tenant, seq.deferred
