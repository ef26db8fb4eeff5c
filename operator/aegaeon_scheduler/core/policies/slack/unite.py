"""Groups of one model become one again where their KV fits: they share weights and steps.

A group is halved when it leaves with much KV, so that its halves find room sooner; without this, every preemption
would leave smaller batches behind.
"""

from __future__ import annotations

from aegaeon_scheduler.core.policies import Move
from aegaeon_scheduler.core.policies.slack.group import Group, Load, Still
from aegaeon_scheduler.core.policies.slack.picture import Picture
from aegaeon_scheduler.core.policies.slack.view import View


def unite(picture: Picture) -> None:
    """Joins waiting groups with one on an engine, else with one that waits as well, most urgent first."""
    for _, _, group, _, rest in sorted(picture.waiting(picture.table.several())):
        for other in list(picture.table.of(group.model)):
            if other is group or other.kind is not group.kind or not other.members or not group.members:
                continue
            if other.inst is None:
                _together(picture, group, rest, other)
            else:
                _join(picture, group, rest, other, picture.note(picture.view(other.inst)))


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


def _together(picture: Picture, group: Group, rest: Still, other: Group) -> None:
    still = other.rest()
    if still is None or rest.only is not still.only or rest.node != still.node:
        return
    able = (i for i in picture.pool.fleet.of(group.model).open if group.may_go(i) and other.may_go(i))
    inst = next(able, None)
    view = picture.view(inst) if inst is not None else None
    if view is not None and _fits(picture, picture.load_on(group, view.inst), picture.load_on(other, view.inst), view):
        picture.table.merge(group, other)


def _fits(picture: Picture, load: Load, other: Load, view: View) -> bool:
    """Returns whether the two make a group that is neither hot nor halved when it leaves."""
    settings, ttft_s = picture.settings, load.group.model.config.slo.ttft_s
    kv_bytes = load.nbytes - load.weights + other.nbytes - other.weights
    if kv_bytes > settings.unite_share * (view.size - load.weights) or load.util + other.util > 0.5 * settings.hot_util:
        return False
    prompts_s = sum(x.group.prompts_s(picture.pool.estimates, view.inst) for x in (load, other))
    return prompts_s <= settings.swamped_share * ttft_s
