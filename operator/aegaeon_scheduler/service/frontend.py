"""Gateways: one Serve stream each, submissions in, verdicts and catalog out; and the status for people.

A gateway whose stream broke has a few seconds to come back. It then submits its open requests again; what it does
not submit again within the same time it does not want any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

import grpc

from aegaeon_proto.codec.errors import ProtocolError
from aegaeon_proto.v1 import admin_pb2, gateway_pb2, gateway_pb2_grpc
from aegaeon_scheduler.core.domain import GatewayId, RejectCode
from aegaeon_scheduler.service.catalog import Catalog
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.gateway_stream import GatewayStream
from aegaeon_scheduler.service.intake import Intake
from aegaeon_scheduler.service.lag import Lag
from aegaeon_scheduler.service.leadership import refuse_streams
from aegaeon_scheduler.service.mismatched import Mismatched
from aegaeon_scheduler.service.queue_positions import QueuePositions
from aegaeon_scheduler.service.sequences import Origin
from aegaeon_scheduler.service.stream import converse
from aegaeon_scheduler.service.tokenizer_reports import TokenizerReports

_SERVICE = gateway_pb2.DESCRIPTOR.services_by_name["Frontend"].full_name
# Changes of the catalog are gathered for this long: at a start every sidecar speaks of every model.
_CATALOG_DELAY_S = 0.05
# People do not read faster.
_SHORTEST_INTERVAL_S = 0.05
# Back-pressure: how often gateways may be sent how full the pool is, and by how much it must have changed.
_LOAD_EVERY_S = 0.2
_LOAD_STEP = 0.005


class FrontendService(gateway_pb2_grpc.FrontendServicer):
    """Servicer of `Frontend`. `grace_s`: seconds that a gateway may be disconnected; `status` makes the pool's."""

    def __init__(
        self,
        driver: Driver,
        catalog: Catalog,
        mismatched: Mismatched,
        grace_s: float,
        status: Callable[[], Awaitable[gateway_pb2.PoolStatus]],
        kv_used: Callable[[], float],
        lag: Lag,
    ) -> None:
        self._driver = driver
        self._lag = lag
        self.intake = Intake(lag, driver.clock, self._admit, self._refuse)
        self._catalog = catalog
        self._mismatched = mismatched
        self._grace_s = grace_s
        self._status = status
        self._kv_used = kv_used
        self._sent_load, self._sent_gateways = 0.0, 1  # as gateways take it to be where nothing was sent
        self._places = QueuePositions(driver.places, driver.tell)
        self._load_timer: asyncio.TimerHandle | None = None
        self._lines: dict[GatewayId, GatewayStream] = {}
        self._numbers = count(1)
        self._announcement: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._tenants: gateway_pb2.Tenants | None = None
        self._texts = TokenizerReports()

    # The stub speaks of a generator; a coroutine that writes sees its own cancellation, so its end is never late.
    async def Serve(  # type: ignore[override]  # the stub is for sync servers as well
        self,
        request_iterator: AsyncIterator[gateway_pb2.GatewayMessage],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """One gateway, from its GatewayHello until the stream ends."""
        await refuse_streams(self._driver, context)
        try:
            line = self._welcome(await anext(request_iterator, gateway_pb2.GatewayMessage()))
        except ProtocolError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            await converse(
                request_iterator, lambda message: self._receive(line, message), line.outbox, line.messages(), context
            )
        finally:
            self._broke(line)

    async def Status(
        self, request: gateway_pb2.StatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[gateway_pb2.PoolStatus]:
        """The pool now, and then again every `interval_s`; once when that is 0."""
        while not self._stopped.is_set():
            yield await self._status()
            if request.interval_s <= 0:
                return
            try:
                async with asyncio.timeout(max(request.interval_s, _SHORTEST_INTERVAL_S)):
                    await self._stopped.wait()
            except TimeoutError:
                continue

    def announce(self) -> None:
        """The catalog changed: tell every gateway soon."""
        if self._announcement is None and self._lines:
            loop = asyncio.get_running_loop()
            self._announcement = loop.call_later(_CATALOG_DELAY_S, self._send_catalog)

    @property
    def tenants_known(self) -> bool:
        return self._tenants is not None

    def set_tenants(self, tenants: gateway_pb2.Tenants) -> bool:
        """Sent to every gateway, now or when it attaches; False when nothing changed."""
        if tenants == self._tenants:
            return False
        self._tenants = tenants
        for line in self._lines.values():
            line.outbox.put(gateway_pb2.GatewayReply(tenants=tenants))
        return True

    def gateways(self) -> list[admin_pb2.GatewayStatus]:
        """The attached gateways, and those that may still reconnect."""
        return [
            admin_pb2.GatewayStatus(
                gateway=name, sink=line.origin.sink, attached=not line.outbox.closed, redis_away=line.redis_away
            )
            for name, line in self._lines.items()
        ]

    def catalog(self) -> gateway_pb2.CatalogStatus:
        """The catalog with what the attached gateways say of it, for the operator of the pool."""
        attached = [name for name, line in self._lines.items() if not line.outbox.closed]
        status = self._catalog.status()
        self._texts.add_to(status, attached)
        return status

    async def demand(self) -> None:
        """Wait until a request is open."""
        while not len(self._driver.sequences):
            self._driver.submitted.clear()
            await self._driver.submitted.wait()

    def stop(self) -> None:
        """End every stream once what waits for it is written."""
        self._stopped.set()
        self.intake.stop()
        self._mismatched.stop()
        self._places.stop()
        if self._announcement is not None:
            self._announcement.cancel()
        if self._load_timer is not None:
            self._load_timer.cancel()
        for line in self._lines.values():
            line.end()

    def _send_load(self) -> None:
        """Send the load repeatedly while gateways are attached."""
        kv_used = self._kv_used()
        self._load_timer = self._later(_LOAD_EVERY_S, self._send_load) if self._lines else None
        gateways = self._attached()
        if abs(kv_used - self._sent_load) < _LOAD_STEP and gateways == self._sent_gateways:
            return
        self._sent_load, self._sent_gateways = kv_used, gateways
        for line in self._lines.values():
            line.outbox.put(_load(kv_used, gateways))

    def _attached(self) -> int:
        return sum(not line.outbox.closed for line in self._lines.values())

    def _send_catalog(self) -> None:
        self._announcement = None
        reply = gateway_pb2.GatewayReply(catalog=self._catalog.status())
        for line in self._lines.values():
            line.outbox.put(reply)

    def _welcome(self, first: gateway_pb2.GatewayMessage) -> GatewayStream:
        if first.WhichOneof("body") != "hello":
            raise ProtocolError("the first message on a stream must be GatewayHello")
        if not first.hello.gateway or not first.hello.sink:
            raise ProtocolError("GatewayHello: gateway and sink must be set")
        gateway = GatewayId(first.hello.gateway)
        line = GatewayStream(Origin(gateway, first.hello.sink, next(self._numbers)), first.hello.batches)
        if first.hello.batches:
            self._taken(line)
        if before := self._lines.get(gateway):
            before.end()
            line.timer = self._later(self._grace_s, self._driver.cancel_older, line.origin)
        self._lines[gateway] = line
        self.intake.forget(gateway)
        self._mismatched.forget(gateway)
        self._texts.forget(gateway)
        self._places.forget(gateway)
        self._places.start()
        self._driver.gateways[gateway] = line.outbox.put
        line.outbox.put(gateway_pb2.GatewayReply(catalog=self._catalog.status()))
        if self._tenants is not None:
            line.outbox.put(gateway_pb2.GatewayReply(tenants=self._tenants))
        if self._sent_load or self._attached() > 1:
            line.outbox.put(_load(self._sent_load, self._attached()))
        if self._load_timer is None:
            self._send_load()
        return line

    def _receive(self, line: GatewayStream, message: gateway_pb2.GatewayMessage) -> None:
        for part in message.more or (message,):
            self._message(line, part)
        if message.more:
            self._taken(line)

    def _taken(self, line: GatewayStream) -> None:
        taken = gateway_pb2.Taken(retry_after_s=self._lag.retry_after_s)
        line.outbox.put(gateway_pb2.GatewayReply(taken=taken))

    def _message(self, line: GatewayStream, message: gateway_pb2.GatewayMessage) -> None:
        if self._lines.get(line.origin.gateway) is not line:
            return  # replaced while this was on its way: the gateway says it again on its new stream
        kind = message.WhichOneof("body")
        if kind == "submit":
            self.intake.offer(line.origin, message.submit)
        elif kind == "cancel":
            cancel = line.origin.gateway, message.cancel.request, message.cancel.choices
            self.intake.cancel(*cancel)
            self._mismatched.cancel(*cancel)
            self._driver.cancel(*cancel)
        elif kind == "text":
            self._texts.tell(line.origin.gateway, message.text)
        elif kind == "redis":
            line.redis_away = message.redis.away
        elif kind == "hello":
            raise ProtocolError(f"{line.origin.gateway}: GatewayHello twice on one stream")

    def _refuse(self, origin: Origin, submit: gateway_pb2.Submit, reason: str) -> None:
        self._driver.refuse(origin, submit, RejectCode.OVERLOADED, reason, self._lag.retry_after_s)

    def _admit(self, origin: Origin, submit: gateway_pb2.Submit) -> None:
        """A model that is withdrawing answers what it was asked before, lost and submitted again or not."""
        base = self._catalog.base_of(submit.model)
        if base in self._catalog.withdrawing and not self._driver.sequences.of_request(submit.request):
            reason = f"{submit.model} was withdrawn from the catalog"
            self._driver.refuse(origin, submit, RejectCode.UNKNOWN_MODEL, reason)
        elif self._mismatched.is_one(submit):
            self._mismatched.take(origin, submit)
        else:
            self._driver.submit(origin, self._catalog.resolved(submit))

    def _broke(self, line: GatewayStream) -> None:
        gateway = line.origin.gateway
        if self._stopped.is_set() or self._lines.get(gateway) is not line:
            return
        line.end()
        self._driver.gateways.pop(gateway, None)
        line.timer = self._later(self._grace_s, self._gone, gateway)

    def _gone(self, gateway: GatewayId) -> None:
        self._lines.pop(gateway)
        self.intake.forget(gateway)
        self._mismatched.forget(gateway)
        self._texts.forget(gateway)
        self._driver.gateway_down(gateway)
        if not self._lines:
            self._places.stop()

    def _later(self, seconds: float, call: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, call, *arguments)


def _load(kv_used: float, gateways: int) -> gateway_pb2.GatewayReply:
    return gateway_pb2.GatewayReply(load=gateway_pb2.PoolLoad(kv_used=kv_used, gateways=gateways))


def status_alone(frontend: FrontendService) -> grpc.GenericRpcHandler:
    """Frontend.Status and no other call, for a port without certificates."""
    handler = grpc.unary_stream_rpc_method_handler(
        frontend.Status,
        request_deserializer=gateway_pb2.StatusRequest.FromString,
        response_serializer=gateway_pb2.PoolStatus.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_SERVICE, {"Status": handler})
