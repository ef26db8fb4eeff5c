"""The endpoints that models answer: prepare the request, submit it, and write the answer as it comes."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial

from aiohttp import web

from aegaeon_gateway.answer.answer import Answer
from aegaeon_gateway.answer.chat import ChatRenderer
from aegaeon_gateway.answer.completions import CompletionRenderer
from aegaeon_gateway.answer.messages import MessagesRenderer
from aegaeon_gateway.answer.render import Renderer
from aegaeon_gateway.answer.responses import ResponsesRenderer
from aegaeon_gateway.errors import ApiError, BodyTooLargeError, InvalidRequestError, ModelChangedError, fault
from aegaeon_gateway.generation.output import Usage
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.http.admission import Client
from aegaeon_gateway.http.background import Background
from aegaeon_gateway.http.caller import Caller
from aegaeon_gateway.http.event_stream import EventStream
from aegaeon_gateway.http.gateway import Gateway
from aegaeon_gateway.http.ignored import tell_ignored
from aegaeon_gateway.http.intake import TOKEN_BYTES, Holding, read_body
from aegaeon_gateway.http.kept import KeptResponses
from aegaeon_gateway.http.pooled import Pooler
from aegaeon_gateway.http.preparation import Preparation, Received
from aegaeon_gateway.http.record import RECORD
from aegaeon_gateway.http.responses import Complete, stream, whole
from aegaeon_gateway.http.silence import Silence, waiting
from aegaeon_gateway.metrics import ModelMetrics
from aegaeon_gateway.tenancy import Charge, Tenant
from aegaeon_gateway.workers.wire import Endpoint
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

log = logging.getLogger(__name__)

_RENDERERS: dict[Endpoint, Callable[[Request], Renderer]] = {
    "chat": ChatRenderer,
    "completions": CompletionRenderer,
    "messages": MessagesRenderer,
    "responses": ResponsesRenderer,
}
Read = Callable[[int, Holding], Awaitable[bytearray]]
"""the body, of so many bytes at most"""
Served = Callable[[Caller, Received, ModelStatus, Holding], Awaitable[web.StreamResponse]]


class Answerer:
    """Handlers of every POST: answers of models, and what workers answer alone."""

    def __init__(self, gateway: Gateway, background: Background | None = None) -> None:
        """Without `background` nothing is generated in it."""
        self._gateway = gateway
        self._background = background
        self._preparation = Preparation(gateway)
        self._kept = KeptResponses(gateway)
        self._pooler = Pooler(gateway, self._preparation)

    async def chat(self, http: web.Request) -> web.StreamResponse:
        return await self._text(http, "chat")

    async def completions(self, http: web.Request) -> web.StreamResponse:
        return await self._text(http, "completions")

    async def embeddings(self, http: web.Request) -> web.StreamResponse:
        return await self._pooled(http, "embeddings")

    async def rerank(self, http: web.Request) -> web.StreamResponse:
        return await self._pooled(http, "rerank")

    async def score(self, http: web.Request) -> web.StreamResponse:
        return await self._pooled(http, "score")

    async def messages(self, http: web.Request) -> web.StreamResponse:
        return await self._text(http, "messages")

    async def responses(self, http: web.Request) -> web.StreamResponse:
        return await self._text(http, "responses")

    async def count_tokens(self, http: web.Request) -> web.Response:
        return await self._at_once(http, "count_tokens")

    async def tokenize(self, http: web.Request) -> web.Response:
        return await self._at_once(http, "tokenize")

    async def detokenize(self, http: web.Request) -> web.Response:
        return await self._at_once(http, "detokenize")

    @asynccontextmanager
    async def _received(
        self, caller: Caller, endpoint: Endpoint, read: Read
    ) -> AsyncIterator[tuple[Received, Holding]]:
        """A request that is open to its end, its body read and its model known; the body is kept by it alone."""
        arrived = time.monotonic()
        client = Client(caller.tenant, self._gateway.tenants.current())
        with self._gateway.intake.request(client.owner, shared=client.shared) as holding:
            body = await read(self._preparation.most_bytes(client, endpoint), holding)
            name, previous = await self._preparation.names_of(client, body)
            record = caller.record
            record.model, record.tenant = name, client.tenant.name
            history = b""
            if previous and endpoint == "responses":
                history = await self._kept.conversation(client.tenant, previous)
                holding.hold(len(body) + len(history))
            marks, defer_s = record.marks, caller.defer_s
            received = Received(record.id, endpoint, client, name, arrived, body, marks, history, defer_s)
            del body, history
            yield received, holding

    async def _at_once(self, http: web.Request, endpoint: Endpoint) -> web.Response:
        """What a worker answers alone."""
        caller = Caller.of(http)
        async with self._received(caller, endpoint, partial(read_body, http)) as (received, _):
            answer, body = await self._preparation.answer(received, await self._preparation.ready(received.model))
            tell_ignored(caller.record, answer.ignored, self._gateway.metrics)
        return web.Response(body=body, content_type="application/json")

    async def _text(self, http: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        """What may be a stream. Raises ApiError while no status is out."""
        events = EventStream(http)
        try:
            return await self._serve(Caller.of(http), endpoint, partial(read_body, http), partial(self._served, events))
        except ApiError as error:
            if not events.opened:
                raise
            return await events.fail(error)
        except ConnectionError:
            raise
        except Exception:  # a second status line would be read as part of the stream, which never ends
            if not events.opened:
                raise
            log.exception("a fault of the gateway in a stream")
            return await events.fail(fault(http[RECORD].id))

    async def _pooled(self, http: web.Request, endpoint: Endpoint) -> web.StreamResponse:
        return await self._serve(Caller.of(http), endpoint, partial(read_body, http), self._pooler.serve)

    async def line(self, caller: Caller, endpoint: Endpoint, body: bytes) -> bytes:
        """The body of the whole answer to a line of a batch. Raises ApiError."""

        async def read(most_bytes: int, holding: Holding) -> bytearray:
            if len(body) > most_bytes:
                raise BodyTooLargeError(most_bytes)
            holding.hold(len(body))
            return bytearray(body)

        served = self._pooler.serve if endpoint == "embeddings" else partial(self._served, None)
        response = await self._serve(caller, endpoint, read, served)
        assert isinstance(response, web.Response), "without a stream answers are whole"
        assert isinstance(response.body, bytes)
        return response.body

    async def _serve(self, caller: Caller, endpoint: Endpoint, read: Read, served: Served) -> web.StreamResponse:
        """From the body to the end of the answer, once more when the model changes before any of the answer is out."""
        async with self._received(caller, endpoint, read) as (received, holding):
            while True:
                model = await self._preparation.ready(received.model)
                try:
                    return await served(caller, received, model, holding)
                except ApiError as error:
                    if received.body is None or not await self._preparation.is_another(model, error):
                        raise

    async def _served(
        self, events: EventStream | None, caller: Caller, received: Received, model: ModelStatus, holding: Holding
    ) -> web.StreamResponse:
        """By the model as it is. Raises ApiError, which may be of no more than that the name stands for another one."""
        with caller.record.part("prepare"):
            request = await self._preparation.request(received, model)
        tell_ignored(caller.record, request.ignored, self._gateway.metrics)
        if request.options.stream and events is None:
            raise InvalidRequestError(
                "Answers to lines of batches are no streams.", param="stream", code="invalid_value"
            )
        holding.hold(request.prompt_tokens * TOKEN_BYTES + len(request.conversation))
        renderer = _RENDERERS[received.endpoint](request)
        if isinstance(renderer, ResponsesRenderer) and renderer.background:
            return await self._started(caller, received.client, request, renderer)
        if events is not None:
            events.failure = renderer.failure
        return await self._answer(caller, request, renderer, holding, events)

    async def _started(
        self, caller: Caller, client: Client, request: Request, renderer: ResponsesRenderer
    ) -> web.StreamResponse:
        """Raises InvalidRequestError, UnavailableError."""
        if self._background is None:
            message = "Lines of batches are answered in the background in any case."
            raise InvalidRequestError(message, param="background", code="invalid_value")

        async def generate(caller: Caller, holding: Holding) -> None:
            await self._answer(caller, request, renderer, holding, None)

        return await self._background.start(client, caller, request, renderer, generate)

    async def _answer(
        self, caller: Caller, request: Request, renderer: Renderer, holding: Holding, events: EventStream | None
    ) -> web.StreamResponse:
        metrics = self._gateway.metrics.of(request.model)
        caller.record.asked(request)
        outcome = "cancelled"
        try:
            with metrics.open_streams.track_inprogress():
                response, outcome = await self._metered(caller, request, renderer, holding, events, metrics)
        except ApiError as error:
            outcome = error.outcome
            raise
        finally:
            metrics.ended(outcome)
            caller.record.outcome = outcome
        return response

    async def _metered(
        self,
        caller: Caller,
        request: Request,
        renderer: Renderer,
        holding: Holding,
        events: EventStream | None,
        metrics: ModelMetrics,
    ) -> tuple[web.StreamResponse, str]:
        """Within the quotas, which are charged as it is served."""
        tenant, model, limits = caller.tenant, request.model, self._gateway.limits
        quota = self._gateway.tenants.current().quota_of(model)
        expected = limits.expected(model, (one.max_tokens for one in request.limits), request.options.n)
        charge = await limits.admit(tenant, model, quota, request.prompt_tokens, expected, caller.record.headers)
        with closing(charge):
            try:
                return await self._generated(caller, request, renderer, holding, events, (metrics, charge))
            except ModelChangedError:  # it is asked of the other model in its place
                await charge.unmake()
                raise

    async def _generated(
        self,
        caller: Caller,
        request: Request,
        renderer: Renderer,
        holding: Holding,
        events: EventStream | None,
        counted: tuple[ModelMetrics, Charge],
    ) -> tuple[web.StreamResponse, str]:
        metrics, charge = counted
        complete = partial(self._complete, caller.tenant, request, renderer)
        async with Answer(request, self._gateway.link, metrics, charge if charge.counts else None) as answer:
            try:
                if events is None or not request.options.stream:
                    return await whole(answer, renderer, holding, complete), "ok"
                return events.response, await self._streamed(answer, renderer, events, complete)
            finally:
                caller.record.answered(answer)
                usage = answer.usage
                metrics.used(caller.tenant.name, usage["prompt_tokens"], usage["completion_tokens"])
                self._gateway.limits.answered(request.model, usage["completion_tokens"], answer.choices)

    async def _streamed(self, answer: Answer, renderer: Renderer, events: EventStream, complete: Complete) -> str:
        """The answer as it comes, comments while it does not; returns how it ended."""

        def waits_for() -> str:
            return waiting(answer.place, self._gateway.catalog.find(answer.model))

        with Silence(self._gateway.config.keepalive_s, answer.wake) as silence:
            return await stream(events, answer, renderer, silence, complete, waits_for)

    async def _complete(self, tenant: Tenant, request: Request, renderer: Renderer, usage: Usage) -> None:
        """A response is kept before its client can name it."""
        if not isinstance(renderer, ResponsesRenderer) or (kept := renderer.kept(usage)) is None:
            return
        if renderer.background and self._background is not None:
            await self._background.complete(tenant.name, request.id, kept)
        elif not await self._gateway.conversations.put(tenant.name, request.id, kept):
            renderer.was_not_kept()
