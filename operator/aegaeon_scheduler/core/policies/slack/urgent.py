"""Which groups that wait for an engine have little slack, found without a look at all of them: an arrival asks.

They are queued by when each will have little slack. That changes only with its members, and then it says so.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.ranks import URGENT_SHARE

_EDGE_S = 1e-6  # asked so much sooner than need be: sums are rounded
_SPARE = 64  # entries that no longer hold, beside as many as there are groups, before they are cleared away


class Urgent:
    """Groups are added where they begin to wait, and dropped where they end to."""

    def __init__(self, settings: SlackSettings) -> None:
        self._late_s = settings.late_slack_s
        self._at: dict[Group, float] = {}  # from then on each is to be asked
        self._queue: list[tuple[float, int, Group]] = []  # a heap of the same, and of what no longer holds
        self._changed: dict[Group, None] = {}

    def add(self, group: Group) -> None:
        """Adds a group that begins to wait."""
        group.watcher = self
        self._at[group] = inf
        self._changed[group] = None

    def drop(self, group: Group) -> None:
        """Drops a group that waits no longer."""
        group.watcher = None
        self._at.pop(group, None)
        self._changed.pop(group, None)

    def changed(self, group: Group) -> None:
        """Revises a group that has other members, or whose members are due at other times."""
        self._changed[group] = None

    def any(self, now: float) -> bool:
        """Returns whether one of them has little slack."""
        changed, self._changed = self._changed, {}
        for group in changed:
            self._enqueue(group, now)
        queue, later, urgent = self._queue, [], False
        while not urgent and queue and queue[0][0] <= now:
            at, _, group = queue[0]
            holds = self._at.get(group) == at
            urgent = holds and self._has_little(group, now)
            if not urgent:
                heappop(queue)
                later += [group] if holds else []
        for group in later:
            self._at[group] = inf
            self._enqueue(group, now)
        return urgent

    @property
    def count(self) -> int:
        """How many wait."""
        return len(self._at)

    def agrees(self, now: float) -> bool:
        """Returns whether a look at all of them gives the same."""
        return self.any(now) is any(self._has_little(group, now) for group in self._at)

    def _has_little(self, group: Group, now: float) -> bool:
        return group.urgency(now, self._late_s)[0] - now < URGENT_SHARE * group.model.config.slo.ttft_s

    def _enqueue(self, group: Group, now: float) -> None:
        at = self._from(group, now)
        if at == self._at[group]:
            return
        self._at[group] = at
        if at < inf:
            heappush(self._queue, (at, group.number, group))
        if len(self._queue) > 2 * len(self._at) + _SPARE:
            self._queue[:] = [(at, group.number, group) for group, at in self._at.items() if at < inf]
            heapify(self._queue)

    def _from(self, group: Group, now: float) -> float:
        """Until then it has slack. What is late counts as due later, so what is due next decides; unless that is soon
        as well, or the group is of prompts that come and go unseen: then it is asked each time."""
        little_s = URGENT_SHARE * group.model.config.slo.ttft_s
        if group.model.pools or self._late_s <= little_s:
            return -inf if group.members else inf
        return group.urgency(now, inf)[0] - little_s - _EDGE_S
