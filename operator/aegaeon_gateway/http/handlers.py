"""The two completion endpoints: check, wait for the model, submit, and write the answer as it comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from aiohttp import web

from aegaeon_gateway.answer.exchange import Exchange
from aegaeon_gateway.answer.prepare import Prepared, prepared_from
from aegaeon_gateway.answer.render import DONE, ChatRenderer, CompletionRenderer, Renderer, error_event
from aegaeon_gateway.config import GatewayConfig
from aegaeon_gateway.errors import (
    ApiError,
    ModelChangedError,
    TokenizerError,
    model_failed,
    overloaded,
)
from aegaeon_gateway.generation.output import Delta
from aegaeon_gateway.http.admission import (
    PEEK_BYTES,
    UNKNOWN_BODY_BYTES,
    Client,
    Endpoint,
    body_bytes,
    check_body,
)
from aegaeon_gateway.http.intake import TOKEN_BYTES, Holding, Intake, read_body
from aegaeon_gateway.http.silence import COMMENT, Silence
from aegaeon_gateway.metrics import Metrics, ModelMetrics
from aegaeon_gateway.models.catalog import Catalog, served_length
from aegaeon_gateway.models.texts import ModelText, Texts
from aegaeon_gateway.request.parse import model_of
from aegaeon_gateway.rpc.link import SchedulerLink
from aegaeon_gateway.tenancy import Limits, Tenant, Tenants
from aegaeon_gateway.workers.pool import WorkerPool
from aegaeon_gateway.workers.wire import Done
from aegaeon_gateway.workers.wire import Job as WorkerJob
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

REQUEST_ID = web.RequestKey("id", str)
TENANT = web.RequestKey("tenant", Tenant)
_PREFIXES: dict[Endpoint, str] = {"chat": "chatcmpl", "completions": "cmpl"}
_DELTAS_IN_TURN = 16
_KEPT_BYTES = 16384  # of a body while it is answered: should its model change at this moment, the prompt is made anew
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # proxies that know it do not collect the stream
}


@dataclass(frozen=True, slots=True)
class Gateway:
    """What the handlers share."""

    config: GatewayConfig
    catalog: Catalog
    texts: Texts
    workers: WorkerPool
    intake: Intake
    link: SchedulerLink
    metrics: Metrics
    tenants: Tenants
    limits: Limits
    started: int  # unix seconds

    @property
    def known(self) -> bool:
        """The scheduler has told which models there are and who may use them."""
        return self.catalog.known and self.tenants.known


@dataclass(slots=True)
class Asked:
    """A request as it came; `body` is None once it is too large to be kept for a second time. `tries`: how often its
    prompt was made."""

    id: str
    endpoint: Endpoint
    client: Client
    model: str
    arrived: float
    body: bytearray | None
    tries: int = 0

    def next_id(self) -> str:
        """Of its next submission. Each has its own: what engines still say of the former one is not of the answer."""
        self.tries += 1
        again = f".{self.tries}" if self.tries > 1 else ""
        return f"{_PREFIXES[self.endpoint]}-{self.id}{again}"


class Answerer:
    """Handlers of POST /v1/chat/completions and POST /v1/completions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def chat(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, "chat")

    async def completions(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, "completions")

    async def _serve(self, http: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        arrived = time.monotonic()
        client = Client(http[TENANT], self._gateway.tenants.current())
        with self._gateway.intake.request(client.owner, shared=client.shared) as holding:
            body = await read_body(http, self._most_bytes(client, endpoint), holding)
            name = await self._model_of(client, body)
            served = (model.spec.name for model in self._gateway.catalog.models())
            client.directory.check(client.tenant, name, served)
            asked = Asked(http[REQUEST_ID], endpoint, client, name, arrived, body)
            del body
            while True:
                model = await self._gateway.catalog.ready(name, self._gateway.config.hold_s)
                try:
                    return await self._served(http, asked, model, holding)
                except ApiError as error:
                    if asked.body is None or not await self._is_another(model, error):
                        raise

    async def _served(
        self, http: web.Request, asked: Asked, model: ModelStatus, holding: Holding
    ) -> web.StreamResponse:
        """By the model as it is. Raises ApiError, which may be of no more than that the name stands for another one."""
        prepared = await self._prepared(asked, model)
        if len(asked.body or ()) > _KEPT_BYTES:
            asked.body = None
        holding.hold(prepared.prompt_tokens * TOKEN_BYTES)
        renderer = ChatRenderer(prepared) if asked.endpoint == "chat" else CompletionRenderer(prepared)
        return await self._answer(http, prepared, renderer, holding)

    async def _is_another(self, model: ModelStatus, error: ApiError) -> bool:
        """Whether the name stands for another model by now; where the scheduler says so, its catalog is on its way."""
        name, catalog = model.spec.name, self._gateway.catalog

        def same() -> bool:
            known = catalog.find(name)
            return known is not None and known.spec.identity == model.spec.identity

        try:
            async with asyncio.timeout(self._gateway.config.hold_s):
                while isinstance(error, ModelChangedError) and same():
                    await catalog.changed()
        except TimeoutError:
            return False
        return catalog.find(name) is not None and not same()

    async def _prepared(self, asked: Asked, model: ModelStatus) -> Prepared:
        """The order of checks: what costs least first, and nothing of the body before it is known who may use what."""
        name, body = asked.model, asked.body
        assert body is not None  # it is prepared again only while it is there
        try:
            text = await self._text(model, asked.arrived + self._gateway.config.hold_s)
            length = served_length(model) or text.max_positions
            check_body(body, length, asked.endpoint)
            job = WorkerJob(text.key, asked.endpoint, name, length)
            done = await self._done(model, asked.client.owner_of(name), job, body)
        except ApiError as error:
            self._gateway.metrics.of(name).ended(_outcome(error))
            raise
        return prepared_from(asked.next_id(), model, text, done, asked.arrived)

    def _most_bytes(self, client: Client, endpoint: Endpoint) -> int:
        """Of a body of this client: what the longest of its models could use. Raises UnauthorizedError without any."""
        client.check_any()
        mine = [m for m in self._gateway.catalog.models() if client.directory.visible(client.tenant, m.spec.name)]
        longest = max((body_bytes(served_length(model), endpoint) for model in mine), default=UNKNOWN_BODY_BYTES)
        return min(longest, self._gateway.config.max_body_bytes)

    async def _model_of(self, client: Client, body: bytearray) -> str:
        if len(body) <= PEEK_BYTES:
            return model_of(body)
        return await self._gateway.workers.model_of(client.owner_of(""), body)

    async def _done(self, model: ModelStatus, owner: str, job: WorkerJob, body: bytearray) -> tuple[Done, bytes]:
        try:
            return await self._gateway.workers.prepare(owner, job, body)
        except TokenizerError as error:
            self._gateway.texts.forget(model.spec.source)
            raise model_failed(model.spec.name, str(error)) from error

    async def _text(self, model: ModelStatus, until: float) -> ModelText:
        name = model.spec.name
        try:
            async with asyncio.timeout(max(until - time.monotonic(), 0.1)):
                return await self._gateway.texts.get(model.spec.source)
        except TimeoutError:
            raise overloaded(f"The tokenizer of {name!r} is still loading; try again.") from None
        except TokenizerError as error:
            raise model_failed(name, str(error)) from error

    async def _answer(
        self, http: web.Request, prepared: Prepared, renderer: Renderer, holding: Holding
    ) -> web.StreamResponse:
        metrics = self._gateway.metrics.of(prepared.model)
        outcome = "cancelled"
        try:
            with metrics.open_streams.track_inprogress():
                response, outcome = await self._metered(http, prepared, renderer, holding, metrics)
        except ApiError as error:
            outcome = _outcome(error)
            raise
        finally:
            metrics.ended(outcome)
        return response

    async def _metered(
        self, http: web.Request, prepared: Prepared, renderer: Renderer, holding: Holding, metrics: ModelMetrics
    ) -> tuple[web.StreamResponse, str]:
        """Within the quotas; what was generated is charged however it ended."""
        tenant, model, limits = http[TENANT], prepared.model, self._gateway.limits
        quota = self._gateway.tenants.current().quota_of(model)
        await limits.admit(tenant, model, quota, prepared.prompt_tokens)
        async with Exchange(prepared, self._gateway.link, metrics) as exchange:
            try:
                if not prepared.request.stream:
                    return await _whole(exchange, renderer, holding), "ok"
                return await self._stream(http, exchange, prepared, renderer)
            finally:
                usage = exchange.usage
                metrics.used(tenant.name, usage["prompt_tokens"], usage["completion_tokens"])
                await limits.charge(tenant, model, quota, usage["completion_tokens"])

    async def _stream(
        self, http: web.Request, exchange: Exchange, prepared: Prepared, renderer: Renderer
    ) -> tuple[web.StreamResponse, str]:
        """The answer as it comes, comments while it does not, and how it ended."""
        catalog, model = self._gateway.catalog, prepared.model
        with Silence(self._gateway.config.keepalive_s, exchange.wake) as silence:
            usage = prepared.request.include_usage
            return await _stream(http, exchange, renderer, silence, lambda: catalog.starting(model), usage=usage)


def _outcome(error: ApiError) -> str:
    return error.code or f"http_{error.status}"


async def _whole(exchange: Exchange, renderer: Renderer, holding: Holding) -> web.Response:
    """Collect everything, answer once. Raises the exchange's ApiError, UnavailableError when it is too much to hold."""
    prompt = holding.size
    while not exchange.done:
        await exchange.wait()
        async for delta in _in_turns(exchange.drain()):
            holding.hold(prompt + renderer.keep(delta))
        if exchange.error is not None:
            raise exchange.error
    pieces = []
    for piece in renderer.pieces(exchange.usage):
        pieces.append(piece)
        await asyncio.sleep(0)  # between two choices streams go on
    return web.Response(body=b"".join(pieces), content_type="application/json")


async def _in_turns(deltas: Iterator[Delta]) -> AsyncIterator[Delta]:
    """The same; other streams go on after every few, as one with 20 likeliest tokens takes 50 us to render."""
    for number, delta in enumerate(deltas, 1):
        yield delta
        if not number % _DELTAS_IN_TURN:
            await asyncio.sleep(0)


async def _write(http: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """The status line goes out with the first bytes."""
    if not response.prepared:
        await response.prepare(http)
    await response.write(data)


async def _stream(
    http: web.Request,
    exchange: Exchange,
    renderer: Renderer,
    silence: Silence,
    starting: Callable[[], bool],
    *,
    usage: bool,
) -> tuple[web.StreamResponse, str]:
    """Write events as tokens come; what came together is one write.

    The status line is sent with the first token, so that a refusal before it has its own status; where an engine is
    being started, with the first comment, since that takes longer than proxies wait. A later error is an event.
    """
    response, opened = web.StreamResponse(headers=_STREAM_HEADERS), False
    while True:
        await exchange.wait()
        events = [renderer.chunk(delta) async for delta in _in_turns(exchange.drain())]
        error, done = exchange.error, exchange.done
        if not response.prepared and error is not None and not done:
            raise error
        if events and not opened:
            events.insert(0, renderer.opening())
            opened = True
        if done:
            events += [renderer.usage(exchange.usage), DONE] if usage else [DONE]
        elif error is not None:
            events.append(error_event(error))
        elif silence.due and not events and (response.prepared or starting()):
            events.append(COMMENT)
        if data := b"".join(events):
            await _write(http, response, data)
            silence.wrote()
        if done or error is not None:
            await response.write_eof()
            return response, "ok" if done or error is None else _outcome(error)
