"""The leadership of the pool's processes: this one or another, and in which term."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from aegaeon_proto.v1 import leadership_pb2 as pb
from aegaeon_proto.v1 import leadership_pb2_grpc
from aegaeon_scheduler.service.driver import Driver

NO_LEASE = 0


class LeadershipService(leadership_pb2_grpc.LeadershipServicer):
    """Servicer of `Leadership`. The driver waits until this process leads."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._term: Callable[[], int] = lambda: NO_LEASE

    def stand_by(self) -> None:
        """Another process leads, or none: streams are refused, and the core gets no events."""
        self._driver.wait()

    def lead(self, term: Callable[[], int]) -> None:
        """Note that this process leads, in the term that `term` says."""
        self._term = term
        self._driver.begin()

    def reply(self) -> pb.LeaderReply:
        """The term is 0 while it stands by, and without a Lease."""
        return pb.LeaderReply(leads=not self._driver.waits, term=self._term())

    async def Ask(self, request: pb.LeaderRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.LeaderReply:
        """Answer in the event loop, so that an answer proves that it runs."""
        return self.reply()


async def refuse_streams(driver: Driver, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Ends the call while this process stands by."""
    if driver.waits:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "this scheduler stands by; another one leads")
