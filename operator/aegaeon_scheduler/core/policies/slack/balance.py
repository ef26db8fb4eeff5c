"""One pass over the pool. Order: empty instances that drain, relieve those that hold too much, unite groups of a model,
place what waits.
"""

from __future__ import annotations

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.phases import PLACE_DEVICE, PLACE_HOST, PLACE_NONE, STAGE_DECODE
from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.batch import due_last
from aegaeon_scheduler.core.policies.slack.engines import View
from aegaeon_scheduler.core.policies.slack.group import Group, Load
from aegaeon_scheduler.core.policies.slack.order import HOT_MARGIN, HOT_UTIL, Still, kv_blocks
from aegaeon_scheduler.core.policies.slack.place import place_waiting
from aegaeon_scheduler.core.policies.slack.snapshot import Picture
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Sequence


def drain(picture: Picture) -> None:
    """Evict from them; groups that have nowhere to go stay until their instance ends."""
    draining = [view for view in picture.views if view.inst.draining]
    for view in draining:
        view.free = False
        for load in [x for x in view.loads if x.group.may_leave() and _has_refuge(picture, x.group, view.inst)]:
            picture.evict(view, load, f"{view.inst.id} is draining")
    if draining:
        for _, _, group, _, rest in sorted(picture.waiting()):
            if not _shelter(picture, group, rest):
                _strand(picture, group)


def _has_refuge(picture: Picture, group: Group, inst: Instance) -> bool:
    placed = any(seq.place is not PLACE_NONE for seq in group.members.values())
    return any(group.may_go(i) and (not placed or i.node == inst.node) for i in picture.pool.instances.values())


def _shelter(picture: Picture, group: Group, rest: Still) -> bool:
    """One that has left joins the group of its model where there is one, as no instance has two of a model."""
    homes = {seq.home for seq in group.members.values() if seq.home is not None}
    if rest.only is not None or not any(home.draining for home in homes):
        return False
    for other in picture.table.of(group.model):
        inst = other.inst
        if inst is not None and inst.node == rest.node and other.kind is group.kind and group.may_go(inst):
            members = tuple(group.members.values())
            picture.table.merge(group, other)
            picture.moves.append(Move(group.model, members, inst, "joins its model where no engine is draining"))
            return True
    return False


def _strand(picture: Picture, group: Group) -> None:
    """KV that was preempted on an instance which drains, where nothing takes it over: computed again elsewhere. Where
    nothing serves its model it waits as for any engine, unless its prompts alone could be computed."""
    places = picture.pool.fleet.of(group.model)
    if not (places.served or places.halved):
        return
    homes = {seq.home for seq in group.members.values() if seq.home is not None and seq.home.draining}
    ends = [home for home in homes if not _has_refuge(picture, group, home)]
    kept = tuple(s for s in group.members.values() if s.place is PLACE_HOST and s.source is None and s.home in ends)
    if kept:
        picture.moves.append(Move(group.model, kept, None, "its engine is draining, and none takes its KV over"))


SHRINK_SHARE = 0.15
"""of the memory beside the weights that a group which has outgrown its instance alone leaves free for growth, and two
that join"""


def relieve(picture: Picture) -> None:
    """Evicts the group with the most slack where growth has used up most of the headroom, or no turn finds room; makes
    one smaller that has outgrown its instance alone."""
    mark = 1.0 - picture.settings.headroom / 4  # the rest is for what grows while the copies run
    for view in picture.views:
        inst, over = view.inst, view.nbytes > view.size * mark
        if len(view.loads) > 1 and (over or (inst.stuck and not inst.count)):
            victims = [x for x in picture.note(view).loads if x.group.may_leave()]
            if victims:
                # By slack, not by rank: who shares a step with few has no less of it.
                victim = max(victims, key=lambda x: (x.key + x.group.standing.behind, x.group.number))
                picture.evict(view, victim, f"{inst.id} holds too much")
        elif len(view.loads) == 1 and over:
            _shrink(picture, picture.note(view), view.loads[0].group)


def _shrink(picture: Picture, view: View, group: Group) -> None:
    """Move members that are due last to a group of their own, until there is room to grow; half of them at most.

    Else a group whose KV exceeds its instance could neither run whole nor leave for anywhere.
    """
    fp = group.model.fp
    room = view.size - fp.weight_slabs * view.inst.slab_bytes
    leaving = _due_last(group, int((view.nbytes - view.fits + SHRINK_SHARE * room) // fp.kv_block_bytes))
    blocks = sum(kv_blocks(s) for s in leaving)
    if leaving and view.inst.book.host_room(group.model.fp, blocks):
        picture.table.move(leaving, group.model, group.kind)
        picture.moves.append(Move(group.model, tuple(leaving), None, f"{group.model.name} outgrew {view.inst.id}"))


def _due_last(group: Group, blocks: int) -> list[Sequence]:
    """So many blocks' worth of those that decode on the device, uncopied; half of the members at most. Of the tenants
    that have most members first."""
    members = group.members.values()
    decoding = [s for s in members if s.copy is None and s.stage is STAGE_DECODE and s.place is PLACE_DEVICE]
    leaving: list[Sequence] = []
    for seq in due_last(decoding)[: len(group.members) // 2]:
        if blocks <= 0:
            break
        leaving.append(seq)
        blocks -= kv_blocks(seq)
    return leaving


def unite(picture: Picture) -> None:
    """Joins waiting groups with one on an engine, most urgent first."""
    for _, _, group, _, rest in sorted(picture.waiting(picture.table.several())):
        for other in list(picture.table.of(group.model)):
            if other.inst is not None and other.kind is group.kind and other.members and group.members:
                _join(picture, group, rest, other, picture.note(picture.table.row(other.inst)))


def _join(picture: Picture, group: Group, rest: Still, other: Group, view: View) -> None:
    """The weights are there: its KV alone comes in."""
    inst, load = view.inst, picture.load_on(group, view.inst)
    target = next((x for x in view.loads if x.group is other), None)
    if target is None or rest.only not in (None, inst) or rest.node not in (None, inst.node) or not group.may_go(inst):
        return
    kv_bytes = load.nbytes - load.weights
    if not _fits(picture, load, target, view) or view.nbytes + kv_bytes > view.fits or not view.free:
        return
    members = tuple(group.members.values())
    picture.table.merge(group, other)
    view.join(target, load)
    picture.moves.append(Move(group.model, members, inst, "joins its model, which runs here"))


def _fits(picture: Picture, load: Load, other: Load, view: View) -> bool:
    """Returns whether the two make a group that is neither hot nor halved when it leaves."""
    ttft_s = load.group.model.config.slo.ttft_s
    kv_bytes = load.nbytes - load.weights + other.nbytes - other.weights
    if kv_bytes > (1.0 - SHRINK_SHARE) * (view.size - load.weights) or load.util + other.util > 0.5 * HOT_UTIL:
        return False
    prompts_s = sum(x.group.prompts_s(picture.pool.estimates, view.inst) for x in (load, other))
    return prompts_s <= HOT_MARGIN * ttft_s


def run_pass(pool: Pool, settings: SlackSettings, table: Table, now: float) -> list[Move]:
    """The moves of one pass, most urgent first."""
    table.reap()
    table.recast()
    table.split_by_adapter()
    table.rescale()
    table.pressed = False
    if not table.groups:
        return []
    picture = Picture(pool, settings, table, now)
    drain(picture)
    relieve(picture)
    unite(picture)
    place_waiting(picture)
    table.pressed = any(group.presses(now, settings.late_slack_s) for group in table.waiting.values())
    return picture.moves
