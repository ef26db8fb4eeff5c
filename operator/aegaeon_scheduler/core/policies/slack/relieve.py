"""Moves one group off each instance whose groups exceed the high-water mark of memory, or that is stuck."""

from __future__ import annotations

from aegaeon_scheduler.core.domain import Place, Stage
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.group import Group, may_leave
from aegaeon_scheduler.core.policies.slack.picture import Picture
from aegaeon_scheduler.core.policies.slack.sequences import due, kv_blocks
from aegaeon_scheduler.core.policies.slack.view import View
from aegaeon_scheduler.core.state import Sequence


def relieve(picture: Picture) -> None:
    """Evict the group with the most slack; one that has outgrown its instance alone gets smaller."""
    mark = 1.0 - picture.settings.headroom * picture.settings.relief_share
    for view in picture.views:
        inst = view.inst
        over = view.nbytes > view.size * mark
        if not (over or (inst.stuck and not inst.count)) or not view.loads:
            continue
        if len(view.loads) > 1:
            _evict_one(picture, view)
        elif over:
            _shrink(picture, picture.note(view), view.loads[0].group)


def _evict_one(picture: Picture, view: View) -> None:
    victims = [x for x in picture.note(view).loads if may_leave(x.group)]
    if victims:
        victim = max(victims, key=lambda x: (x.slack, x.group.number))
        picture.evict(view, victim, f"{view.inst.id} holds too much")


def _shrink(picture: Picture, view: View, group: Group) -> None:
    """Move members that are due last to a group of their own, until there is room to grow; half of them at most."""
    fp, settings = group.model.fp, picture.settings
    room = view.size - fp.weight_slabs * view.inst.slab_bytes
    excess = view.nbytes - view.fits + settings.shrink_share * room
    leaving = _due_last(group, int(excess // fp.kv_block_bytes))
    blocks = sum(kv_blocks(s) for s in leaving)
    if leaving and view.inst.book.host_room(group.model.fp, blocks):
        picture.table.move(leaving, group.model, group.kind)
        picture.moves.append(Move(group.model, tuple(leaving), None, f"{group.model.name} outgrew {view.inst.id}"))


def _due_last(group: Group, blocks: int) -> list[Sequence]:
    """So many blocks' worth of those that decode on the device, uncopied; half of the members at most."""
    members = group.members.values()
    decoding = [s for s in members if s.copy is None and s.stage is Stage.DECODE and s.place is Place.DEVICE]
    leaving: list[Sequence] = []
    for seq in sorted(decoding, key=due, reverse=True)[: len(group.members) // 2]:
        if blocks <= 0:
            break
        leaving.append(seq)
        blocks -= kv_blocks(seq)
    return leaving
