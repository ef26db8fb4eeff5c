"""The endpoints that models answer: prepare the request, submit it, and write the answer as it comes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from aegaeon_gateway.answer.answer import Answer
from aegaeon_gateway.answer.chat import ChatRenderer
from aegaeon_gateway.answer.completions import CompletionRenderer
from aegaeon_gateway.answer.render import Renderer
from aegaeon_gateway.errors import ApiError
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.http.admission import Client
from aegaeon_gateway.http.gateway import REQUEST_ID, TENANT, Gateway
from aegaeon_gateway.http.intake import TOKEN_BYTES, Holding, read_body
from aegaeon_gateway.http.pooled import Pooler
from aegaeon_gateway.http.preparation import Preparation, Received
from aegaeon_gateway.http.responses import stream, whole
from aegaeon_gateway.http.silence import Silence
from aegaeon_gateway.metrics import ModelMetrics
from aegaeon_gateway.workers.wire import Endpoint
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

Served = Callable[[web.Request, Received, ModelStatus, Holding], Awaitable[web.StreamResponse]]


class Answerer:
    """Handlers of POST /v1/chat/completions and /v1/completions, /v1/embeddings, /rerank and /score, /tokenize and
    /detokenize."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._preparation = Preparation(gateway)
        self._pooler = Pooler(gateway, self._preparation)

    async def chat(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, "chat", self._served)

    async def completions(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, "completions", self._served)

    async def embeddings(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, "embeddings", self._pooler.serve)

    async def rerank(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, "rerank", self._pooler.serve)

    async def score(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, "score", self._pooler.serve)

    async def tokenize(self, http: web.Request) -> web.Response:
        return await self._at_once(http, "tokenize")

    async def detokenize(self, http: web.Request) -> web.Response:
        return await self._at_once(http, "detokenize")

    @asynccontextmanager
    async def _received(self, http: web.Request, endpoint: Endpoint) -> AsyncIterator[tuple[Received, Holding]]:
        """A request that is open to its end, its body read and its model known; the body is kept by it alone."""
        arrived = time.monotonic()
        client = Client(http[TENANT], self._gateway.tenants.current())
        with self._gateway.intake.request(client.owner, shared=client.shared) as holding:
            body = await read_body(http, self._preparation.most_bytes(client, endpoint), holding)
            name = await self._preparation.model_of(client, body)
            received = Received(http[REQUEST_ID], endpoint, client, name, arrived, body)
            del body
            yield received, holding

    async def _at_once(self, http: web.Request, endpoint: Endpoint) -> web.Response:
        """What a worker answers alone."""
        async with self._received(http, endpoint) as (received, _):
            answer = await self._preparation.answer(received, await self._preparation.ready(received.model))
        return web.Response(body=answer, content_type="application/json")

    async def _serve(self, http: web.Request, endpoint: Endpoint, served: Served) -> web.StreamResponse:
        """From the body to the end of the answer, once more when the model changes before any of the answer is out."""
        async with self._received(http, endpoint) as (received, holding):
            while True:
                model = await self._preparation.ready(received.model)
                try:
                    return await served(http, received, model, holding)
                except ApiError as error:
                    if received.body is None or not await self._preparation.is_another(model, error):
                        raise

    async def _served(
        self, http: web.Request, received: Received, model: ModelStatus, holding: Holding
    ) -> web.StreamResponse:
        """By the model as it is. Raises ApiError, which may be of no more than that the name stands for another one."""
        request = await self._preparation.request(received, model)
        holding.hold(request.prompt_tokens * TOKEN_BYTES)
        renderer = ChatRenderer(request) if received.endpoint == "chat" else CompletionRenderer(request)
        return await self._answer(http, request, renderer, holding)

    async def _answer(
        self, http: web.Request, request: Request, renderer: Renderer, holding: Holding
    ) -> web.StreamResponse:
        metrics = self._gateway.metrics.of(request.model)
        outcome = "cancelled"
        try:
            with metrics.open_streams.track_inprogress():
                response, outcome = await self._metered(http, request, renderer, holding, metrics)
        except ApiError as error:
            outcome = error.outcome
            raise
        finally:
            metrics.ended(outcome)
        return response

    async def _metered(
        self, http: web.Request, request: Request, renderer: Renderer, holding: Holding, metrics: ModelMetrics
    ) -> tuple[web.StreamResponse, str]:
        """Within the quotas; what was generated is charged however it ended."""
        tenant, model, limits = http[TENANT], request.model, self._gateway.limits
        quota = self._gateway.tenants.current().quota_of(model)
        await limits.admit(tenant, model, quota, request.prompt_tokens)
        async with Answer(request, self._gateway.link, metrics) as answer:
            try:
                if not request.options.stream:
                    return await whole(answer, renderer, holding), "ok"
                return await self._streamed(http, answer, request, renderer)
            finally:
                usage = answer.usage
                metrics.used(tenant.name, usage["prompt_tokens"], usage["completion_tokens"])
                await limits.charge(tenant, model, quota, usage["completion_tokens"])

    async def _streamed(
        self, http: web.Request, answer: Answer, request: Request, renderer: Renderer
    ) -> tuple[web.StreamResponse, str]:
        """The answer as it comes, comments while it does not, and how it ended."""
        catalog, model = self._gateway.catalog, request.model
        with Silence(self._gateway.config.keepalive_s, answer.wake) as silence:
            usage = request.options.include_usage
            return await stream(http, answer, renderer, silence, lambda: catalog.starting(model), usage=usage)
