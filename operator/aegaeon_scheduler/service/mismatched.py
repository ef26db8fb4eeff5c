"""Submissions whose prompt is of another model than their name stands for. They are never computed.

A prompt of the model that a name is about to stand for waits until it does. Right after the scheduler's start an engine
may yet come that has the prompt's model, and may even hold the sequence: it waits for that as well. All others are
refused, and the gateway makes the prompt anew if nothing of the answer is out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from aegaeon_proto.v1 import gateway_pb2
from aegaeon_scheduler.core.domain import GatewayId, RejectCode
from aegaeon_scheduler.service.catalog import Catalog
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.rollouts import Rollouts
from aegaeon_scheduler.service.sequences import Origin, remove_choices

_LOOK_S = 0.05


class Mismatched:
    """Owner of the submissions that wait until their name stands for the model of their prompt."""

    def __init__(self, catalog: Catalog, driver: Driver, rollouts: Rollouts) -> None:
        self._catalog = catalog
        self._driver = driver
        self._rollouts = rollouts
        self._waiting: list[tuple[Origin, gateway_pb2.Submit]] = []
        self._timer: asyncio.TimerHandle | None = None

    def is_one(self, submit: gateway_pb2.Submit) -> bool:
        """True when the name is served but stands for another model than that of the prompt."""
        return self._catalog.knows(submit.model) and not self._catalog.means(submit.model, submit.identity)

    def take(self, origin: Origin, submit: gateway_pb2.Submit) -> None:
        """Let it wait, or refuse it."""
        self._judge(origin, submit)
        self._arm()

    def cancel(self, gateway: GatewayId, request: str, choices: Collection[int]) -> None:
        """The reader of these choices (none named: of all) has left."""
        self._waiting = [
            (origin, submit)
            for origin, submit in self._waiting
            if (origin.gateway, submit.request) != (gateway, request) or remove_choices(submit, choices)
        ]

    def forget(self, gateway: GatewayId) -> None:
        """Drop what the gateway has not submitted again: it does not need that any more."""
        self._waiting = [(origin, submit) for origin, submit in self._waiting if origin.gateway != gateway]

    def stop(self) -> None:
        """The look-up is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _is_coming(self, submit: gateway_pb2.Submit) -> bool:
        target = self._rollouts.target(submit.model)
        return target is not None and target.identity == submit.identity

    def _judge(self, origin: Origin, submit: gateway_pb2.Submit) -> None:
        if not self.is_one(submit):
            self._driver.submit(origin, self._catalog.resolved(submit))
        elif self._rollouts.reattach_grace_over and not self._is_coming(submit):
            reason = f"{submit.model} stands for another model than it did"
            self._driver.refuse(origin, submit, RejectCode.CHANGED, reason)
        else:
            self._waiting.append((origin, submit))

    def _look(self) -> None:
        self._timer = None
        waiting, self._waiting = self._waiting, []
        for origin, submit in waiting:
            self._judge(origin, submit)
        self._arm()

    def _arm(self) -> None:
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
