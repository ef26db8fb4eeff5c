"""Instances that cannot keep up: the group with the most slack moves to the least busy instance."""

from __future__ import annotations

from heapq import nsmallest
from math import inf

from aegaeon_scheduler.core.policies.slack.group import Load, may_leave
from aegaeon_scheduler.core.policies.slack.picture import Picture
from aegaeon_scheduler.core.policies.slack.view import View

_BUSIEST = 2  # instances of a pass that hand a group over: two moves are seen in the load before there are more


def rebalance(picture: Picture) -> None:
    """From the busiest, where they are overloaded and a deadline is near."""
    settings = picture.settings
    for view in nsmallest(_BUSIEST, picture.views, key=lambda v: (-v.util, v.inst.order)):
        if view.util < settings.busy_util or len(view.loads) < 2:
            return
        worst_s = min(x.key for x in picture.note(view).loads) - picture.now
        if worst_s < settings.busy_slack_s:
            _move_from(picture, view)


def _move_from(picture: Picture, view: View) -> None:
    free = (v for v in picture.views if v.free)
    least = min(free, key=lambda v: (v.util, v.inst.order), default=None)
    if least is None or view.util - least.util < picture.settings.busy_gap:
        return
    for load in sorted(view.loads, key=lambda x: (-x.key, x.group.number)):
        if load.key - picture.now <= picture.settings.move_slack_s:
            return
        if _may_move(picture, load, view, least):
            picture.evict(view, load, f"{view.inst.id} cannot keep up: moves to {least.inst.id}")
            load.group.target = least.inst
            return


def _may_move(picture: Picture, load: Load, view: View, least: View) -> bool:
    """Returns whether the group runs by now, and the other instance can take it and is not slower with it."""
    group, source, target = load.group, view.inst, least.inst
    if group.since == inf or not group.may_go(target) or not may_leave(group):
        return False
    if not picture.reach.near(group.model.name, target) or target.node != source.node:
        return False
    if least.nbytes + load.nbytes > least.fits:
        return False
    return target.device == source.device or least.util + picture.load_on(group, target).util <= view.util
