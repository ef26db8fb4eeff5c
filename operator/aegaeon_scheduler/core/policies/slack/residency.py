"""Where KV of a group's members is: the node or the instance that it binds them to, and whether it can leave."""

from __future__ import annotations

from collections.abc import Mapping

from aegaeon_scheduler.core.domain import SeqId
from aegaeon_scheduler.core.phases import PLACE_DEVICE, PLACE_HOST, PLACE_NONE, STAGE_PREFILL
from aegaeon_scheduler.core.policies.slack.order import kv_blocks
from aegaeon_scheduler.core.state import Instance, Sequence

Members = Mapping[SeqId, Sequence]


def pinned(members: Members) -> Instance | None:
    """The only instance that can go on with them: their KV is on a device, or on a host tier without a handle."""
    for seq in members.values():
        if seq.place is PLACE_DEVICE or (seq.place is PLACE_HOST and seq.handle_of is None):
            return seq.home
    return None


def node_of(members: Members) -> str | None:
    """The node that has their KV, also when that is about to leave a device, or is handed over and not adopted yet."""
    return next((s.home.node for s in members.values() if s.home is not None and _has_kv(s)), None)


def _has_kv(seq: Sequence) -> bool:
    """Returns whether a sequence has KV, or will have when what is under way has ended."""
    return seq.place is not PLACE_NONE or seq.source is not None or seq.copy is not None


def may_leave(members: Members, inst: Instance, begun: bool) -> bool:
    """Returns whether all can leave their instance once its turns are over: no copy under way, host room for all.

    With `begun` also one with a prompt just begun. Between equals that one stays: a group that has paid for its place
    works off its prompts, else under overload all take turns and come late.
    """
    blocks = 0
    for seq in members.values():
        first = seq.stage is STAGE_PREFILL and seq.place is PLACE_NONE
        if seq.copy is not None or (first and not begun):
            return False
        if seq.place is PLACE_DEVICE or seq.turns:
            blocks += kv_blocks(seq)
    return not blocks or inst.book.host_room(next(iter(members.values())).model.fp, blocks)
