"""Instances that are draining: their groups leave for where their KV can be had."""

from __future__ import annotations

from aegaeon_scheduler.core.domain import Place
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.group import Group, Still, may_leave
from aegaeon_scheduler.core.policies.slack.picture import Picture
from aegaeon_scheduler.core.state import Instance


def drain(picture: Picture) -> None:
    """Evict from them; groups that have nowhere to go stay until their instance ends."""
    draining = [view for view in picture.views if view.inst.draining]
    for view in draining:
        view.free = False
        for load in [x for x in view.loads if may_leave(x.group) and _has_refuge(picture, x.group, view.inst)]:
            picture.evict(view, load, f"{view.inst.id} is draining")
    if draining:
        for _, _, group, _, rest in sorted(picture.waiting()):
            _shelter(picture, group, rest)


def _has_refuge(picture: Picture, group: Group, inst: Instance) -> bool:
    placed = any(seq.place is not Place.NONE for seq in group.members.values())
    return any(group.may_go(i) and (not placed or i.node == inst.node) for i in picture.pool.instances.values())


def _shelter(picture: Picture, group: Group, rest: Still) -> None:
    """One that has left joins the group of its model where there is one, as no instance has two of a model."""
    homes = {seq.home for seq in group.members.values() if seq.home is not None}
    if rest.only is not None or not any(home.draining for home in homes):
        return
    for other in picture.table.of(group.model):
        inst = other.inst
        if inst is not None and inst.node == rest.node and other.kind is group.kind and group.may_go(inst):
            members = tuple(group.members.values())
            picture.table.merge(group, other)
            picture.moves.append(Move(group.model, members, inst, "joins its model where no engine is draining"))
            return
