"""Responses that are generated while no client waits: clients poll what is kept of them, and may cancel them.

The gateway that generates one shows in what is kept that it lives, by a beat that changes. No clocks are compared:
another gateway that has seen the same beat for long enough on its own clock writes down that the response has failed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial

import orjson
from aiohttp import web

from aegaeon_gateway.answer.answer import Answer
from aegaeon_gateway.answer.responses import ResponsesRenderer
from aegaeon_gateway.conversations import Kept
from aegaeon_gateway.errors import ApiError, InvalidRequestError, UnavailableError, fault, overloaded
from aegaeon_gateway.http.access_log import AccessLog
from aegaeon_gateway.http.body import collect
from aegaeon_gateway.http.exchange import Exchange
from aegaeon_gateway.http.gateway import Gateway
from aegaeon_gateway.http.record import Record
from aegaeon_gateway.http.serve import generate
from aegaeon_gateway.request_id import logged_as

log = logging.getLogger(__name__)

_LOOK_S = 5.0  # between two signs of life, and until a cancellation at another gateway is seen
DEAD_S = 60.0
"""without a sign of life, after which the gateway is taken for gone"""
_MOST_SIGHTS = 4096


class Sights:
    """Beats of responses that other gateways generate, and since when each is the same."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, float]] = {}

    def is_dead(self, key: tuple[str, str], beat: float) -> bool:
        """True when a response has shown no life for too long."""
        now = self._clock()
        before, since = self._seen.get(key, (beat, now))
        if before != beat:
            since = now
        self._seen[key] = beat, since
        if len(self._seen) > _MOST_SIGHTS:
            del self._seen[next(iter(self._seen))]
        return now - since > DEAD_S


def _cut_off(kept: Kept) -> Kept:
    """As it is kept when its gateway has ended."""
    error = {"code": "server_error", "message": "The gateway that generated this response has ended."}
    response = orjson.dumps({**orjson.loads(kept.response), "status": "failed", "error": error})
    return Kept(response, kept.conversation)


class Background:
    """Owner of their tasks. `inside`: around work for which a graceful shutdown waits."""

    def __init__(
        self, gateway: Gateway, access_log: AccessLog, inside: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._intake = gateway.intake
        self._kept = gateway.conversations
        self._access_log = access_log
        self._inside = inside
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._sights = Sights()
        self._complete: set[tuple[str, str]] = set()  # of them: only what is taken of quotas is left to be done

    async def start(self, exchange: Exchange) -> web.Response:
        """Answer at once with what is kept of it from then on. Raises UnavailableError."""
        client, renderer = exchange.client, _renderer(exchange)
        behind = _behind(exchange)
        key = (client.tenant.name, exchange.request.id)
        with ExitStack() as stack:
            behind.holding = stack.enter_context(self._intake.request(client.owner, shared=client.shared))
            behind.holding.hold(exchange.holding.size)
            kept = renderer.begun(time.time())
            if not await self._kept.put(*key, kept):
                raise overloaded("The response cannot be kept at present; ask for it without background.")
            stack.enter_context(self._inside())
            task = self._tasks[key] = asyncio.create_task(self._run(key, behind))
            task.add_done_callback(partial(self._ended, key, stack.pop_all()))
        return web.Response(body=kept.response, content_type="application/json")

    async def render(self, exchange: Exchange) -> None:
        """Implements Writer: keep the complete response, unless its client does not want it any more.

        Raises ApiError, also where it is too large.
        """
        answer, renderer = exchange.answer, _renderer(exchange)
        assert isinstance(answer, Answer), "responses are generated"
        await collect(exchange, answer)
        if (kept := renderer.kept(answer.usage)) is None:
            return
        key = exchange.client.tenant.name, exchange.request.id
        self._complete.add(key)
        if not await self._kept.replace(*key, kept):
            before = await self._kept.get(*key)
            if before is not None and before.beat:
                message = "The response is larger than what may be kept; ask for it without background."
                raise InvalidRequestError(message, code="response_too_large")

    async def shown(self, tenant: str, id_: str, kept: Kept) -> bytes:
        """The response for one who polls. What is final is written down first. Raises UnavailableError."""
        key = tenant, id_
        if not kept.beat or key in self._tasks or not self._sights.is_dead(key, kept.beat):
            return kept.response
        return await self._settled(key, _cut_off(kept))

    async def cancel(self, tenant: str, id_: str, kept: Kept) -> bytes:
        """End it, if it is not over; returns the response. Raises UnavailableError."""
        if not kept.beat:
            return kept.response
        response = orjson.dumps({**orjson.loads(kept.response), "status": "cancelled", "error": None})
        settled = await self._settled((tenant, id_), Kept(response, kept.conversation))
        if settled == response and (task := self._tasks.get((tenant, id_))) is not None:
            task.cancel()
        return settled

    async def _settled(self, key: tuple[str, str], final: Kept) -> bytes:
        """How it has ended: so, unless it was over or deleted in this very moment."""
        if not await self._kept.replace(*key, final) and (ended := await self._kept.get(*key)) is not None:
            return ended.response
        return final.response

    async def stop(self) -> None:
        """End all tasks; a response that is not complete has failed."""
        tasks = dict(self._tasks)
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        for key in tasks:
            with suppress(UnavailableError):
                if (kept := await self._kept.get(*key)) is not None:
                    await self._kept.replace(*key, _cut_off(kept))

    def _ended(self, key: tuple[str, str], stack: ExitStack, task: asyncio.Task[None]) -> None:
        """Not a `finally` of the task: one that is cancelled before its first step never gets there."""
        del self._tasks[key]
        self._complete.discard(key)
        stack.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a fault of the gateway in the background", exc_info=error)

    async def _run(self, key: tuple[str, str], exchange: Exchange) -> None:
        record = exchange.record
        with logged_as(record.log_id):
            try:
                await self._while_wanted(key, generate(exchange, self))
            except ApiError as error:
                await self._failed(key, exchange, error)
            except Exception:  # whatever it is, who polls learns of it and the log has the traceback
                log.exception("a fault of the gateway")
                await self._failed(key, exchange, fault(record.id))
            finally:
                self._access_log.add(record)

    async def _while_wanted(self, key: tuple[str, str], work: Awaitable[object]) -> None:
        """Show signs of life until the work is over; end it where its response is not wanted any more."""
        working = asyncio.ensure_future(work)
        try:
            while not working.done():
                await asyncio.wait([working], timeout=_LOOK_S)
                if not working.done() and not await self._beat(key) and key not in self._complete:
                    return
            working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _beat(self, key: tuple[str, str]) -> bool:
        """False where its client does not want it any more."""
        with suppress(UnavailableError):
            kept = await self._kept.get(*key)
            if kept is None or not kept.beat:
                return False
            return await self._kept.replace(*key, Kept(kept.response, kept.conversation, time.time()))
        return True

    async def _failed(self, key: tuple[str, str], exchange: Exchange, error: ApiError) -> None:
        with suppress(UnavailableError):  # without a sign of life it has failed as well
            await self._kept.replace(*key, _renderer(exchange).ended_with(error))


def _renderer(exchange: Exchange) -> ResponsesRenderer:
    assert isinstance(exchange.renderer, ResponsesRenderer), "only responses are generated in the background"
    return exchange.renderer


def _behind(exchange: Exchange) -> Exchange:
    """The exchange that continues behind the answer, with a line of its own in the access log."""
    before, began = exchange.record, time.monotonic()
    endpoint = "background /v1/responses"
    record = Record(before.id, before.client_id, before.method, endpoint, before.address, began)
    record.model, record.tenant, record.status = before.model, before.tenant, 200
    behind = Exchange(exchange.gateway, exchange.endpoint, exchange.client, record)
    behind.model_name, behind.request, behind.renderer = exchange.model_name, exchange.request, exchange.renderer
    return behind
