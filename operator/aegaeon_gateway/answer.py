"""The two completion endpoints: check, wait for the model, submit, and write the answer as it comes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from aiohttp import web

from aegaeon_gateway.catalog import Catalog
from aegaeon_gateway.config import GatewayConfig
from aegaeon_gateway.errors import ApiError, BodyTooLargeError, TokenizerError, model_failed, overloaded
from aegaeon_gateway.exchange import Exchange
from aegaeon_gateway.link import SchedulerLink
from aegaeon_gateway.metrics import Metrics, ModelMetrics
from aegaeon_gateway.output import Delta
from aegaeon_gateway.prepare import Prepared, prepare
from aegaeon_gateway.render import DONE, ChatRenderer, CompletionRenderer, Renderer, error_event
from aegaeon_gateway.schema import ChatRequest, CompletionRequest, parse
from aegaeon_gateway.tenancy import Limits, Tenant, Tenants
from aegaeon_gateway.texts import ModelText, Tokenizers
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

REQUEST_ID = web.RequestKey("id", str)
TENANT = web.RequestKey("tenant", Tenant)
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
    tokenizers: Tokenizers
    link: SchedulerLink
    metrics: Metrics
    tenants: Tenants
    limits: Limits
    started: int  # unix seconds

    @property
    def known(self) -> bool:
        """The scheduler has told which models there are and who may use them."""
        return self.catalog.known and self.tenants.known


class Answerer:
    """Handlers of POST /v1/chat/completions and POST /v1/completions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def chat(self, http: web.Request) -> web.StreamResponse:
        arrived = time.monotonic()
        request = parse(ChatRequest, await self._body(http))
        prepared = await self._prepare(f"chatcmpl-{http[REQUEST_ID]}", request, arrived, http[TENANT])
        return await self._answer(http, prepared, ChatRenderer(prepared))

    async def completions(self, http: web.Request) -> web.StreamResponse:
        arrived = time.monotonic()
        request = parse(CompletionRequest, await self._body(http))
        prepared = await self._prepare(f"cmpl-{http[REQUEST_ID]}", request, arrived, http[TENANT])
        return await self._answer(http, prepared, CompletionRenderer(prepared, echo=request.echo))

    async def _body(self, http: web.Request) -> bytes:
        try:
            return await http.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise BodyTooLargeError(self._gateway.config.max_body_bytes) from error

    async def _prepare(
        self, request_id: str, request: ChatRequest | CompletionRequest, arrived: float, tenant: Tenant
    ) -> Prepared:
        hold_s = self._gateway.config.hold_s
        served = (model.spec.name for model in self._gateway.catalog.models())
        self._gateway.tenants.current().check(tenant, request.model, served)
        model = await self._gateway.catalog.ready(request.model, hold_s)
        try:
            text = await self._text(model, arrived + hold_s)
            return await prepare(request_id, request, model, text, arrived)
        except ApiError as error:
            self._gateway.metrics.of(request.model).ended(_outcome(error))
            raise

    async def _text(self, model: ModelStatus, until: float) -> ModelText:
        name = model.spec.name
        try:
            async with asyncio.timeout(max(until - time.monotonic(), 0.1)):
                return await self._gateway.tokenizers.get(model.spec.source)
        except TimeoutError:
            raise overloaded(f"The tokenizer of {name!r} is still loading; try again.") from None
        except TokenizerError as error:
            raise model_failed(name, str(error)) from error

    async def _answer(self, http: web.Request, prepared: Prepared, renderer: Renderer) -> web.StreamResponse:
        metrics = self._gateway.metrics.of(prepared.model)
        outcome = "cancelled"
        try:
            with metrics.open_streams.track_inprogress():
                response, outcome = await self._metered(http, prepared, renderer, metrics)
        except ApiError as error:
            outcome = _outcome(error)
            raise
        finally:
            metrics.ended(outcome)
        return response

    async def _metered(
        self, http: web.Request, prepared: Prepared, renderer: Renderer, metrics: ModelMetrics
    ) -> tuple[web.StreamResponse, str]:
        """Within the quotas; what was generated is charged however it ended."""
        tenant, model, limits = http[TENANT], prepared.model, self._gateway.limits
        quota = self._gateway.tenants.current().quota_of(model)
        await limits.admit(tenant, model, quota, sum(len(job.prompt) for job in prepared.jobs))
        async with Exchange(prepared, self._gateway.link, metrics) as exchange:
            try:
                return await _exchange(http, exchange, prepared, renderer)
            finally:
                usage = exchange.usage
                metrics.used(tenant.name, usage["prompt_tokens"], usage["completion_tokens"])
                await limits.charge(tenant, model, quota, usage["completion_tokens"])


def _outcome(error: ApiError) -> str:
    return error.code or f"http_{error.status}"


async def _exchange(
    http: web.Request, exchange: Exchange, prepared: Prepared, renderer: Renderer
) -> tuple[web.StreamResponse, str]:
    """The answer and how it ended."""
    if prepared.request.stream:
        return await _stream(http, exchange, renderer, usage=prepared.request.include_usage)
    return await _whole(exchange, renderer), "ok"


async def _whole(exchange: Exchange, renderer: Renderer) -> web.Response:
    """Collect everything, answer once. Raises the exchange's ApiError."""
    choices: dict[int, Delta] = {}
    while not exchange.done:
        await exchange.wait()
        for delta in exchange.drain():
            _merge(choices.setdefault(delta.index, Delta(delta.index)), delta)
        if exchange.error is not None:
            raise exchange.error
    ordered = [choices[index] for index in sorted(choices)]
    return web.Response(body=renderer.body(ordered, exchange.usage), content_type="application/json")


def _merge(whole: Delta, delta: Delta) -> None:
    whole.text += delta.text
    whole.tokens += delta.tokens
    whole.logprobs += delta.logprobs
    whole.finish = delta.finish


async def _stream(
    http: web.Request, exchange: Exchange, renderer: Renderer, *, usage: bool
) -> tuple[web.StreamResponse, str]:
    """Write events as tokens come; what came together is one write.

    The status line is sent with the first token, so that a refusal before it has its own status. A later error is an
    event of the stream.
    """
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    while True:
        await exchange.wait()
        events = [renderer.chunk(delta) for delta in exchange.drain()]
        error, done = exchange.error, exchange.done
        if not response.prepared:
            if error is not None and not done:
                raise error
            if not events:
                continue
            events.insert(0, renderer.opening())
            await response.prepare(http)
        if done:
            events += [renderer.usage(exchange.usage), DONE] if usage else [DONE]
        elif error is not None:
            events.append(error_event(error))
        if data := b"".join(events):
            await response.write(data)
        if done or error is not None:
            await response.write_eof()
            return response, "ok" if done or error is None else _outcome(error)
