"""A request in six steps: receive, prepare, admit, submit, render, charge. Every endpoint and every caller goes so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import TypeVar

from aegaeon_gateway.answer.answer import Answer
from aegaeon_gateway.answer.pooled import Pooling
from aegaeon_gateway.errors import ApiError, ModelChangedError
from aegaeon_gateway.http.exchange import Caller, Exchange, Writer
from aegaeon_gateway.http.prepare import is_another, prepare, worker_answer
from aegaeon_gateway.http.receive import receive
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

T = TypeVar("T")


async def serve(exchange: Exchange, caller: Caller[T]) -> T:
    """Answer a request, again from its preparation when the model changes before any of the answer is out.

    Raises ApiError.
    """
    client = exchange.client
    with exchange.gateway.intake.request(client.owner, shared=client.shared) as exchange.holding:
        await receive(exchange, caller)
        while True:
            exchange.model = await _ready(exchange)
            try:
                await prepare(exchange)
                writer = caller.writer(exchange)
                if exchange.in_background:
                    return await caller.detach(exchange)
                return await generate(exchange, writer)
            except ApiError as error:
                if exchange.body is None or not await is_another(exchange, error):
                    raise


async def generate(exchange: Exchange, writer: Writer[T]) -> T:
    """Admit, submit, render and charge a request that is prepared. Raises ApiError."""
    with _counted(exchange):
        async with _admitted(exchange), _submitted(exchange):
            return await writer.render(exchange)


async def serve_by_worker(exchange: Exchange, caller: Caller[object]) -> bytes:
    """The body of an answer that needs no engine. Raises ApiError."""
    client = exchange.client
    with exchange.gateway.intake.request(client.owner, shared=client.shared) as exchange.holding:
        await receive(exchange, caller)
        exchange.model = await _ready(exchange)
        return await worker_answer(exchange)


async def _ready(exchange: Exchange) -> ModelStatus:
    """The model, once engines may be asked for it. Raises ApiError."""
    return await exchange.gateway.catalog.ready(exchange.model_name, exchange.gateway.config.hold_s)


@contextmanager
def _counted(exchange: Exchange) -> Iterator[None]:
    """Around an answer: it is an open stream in the metrics, and its outcome is counted and recorded."""
    metrics = exchange.metrics
    exchange.record.requested(exchange.request)
    exchange.outcome = "ok"
    try:
        with metrics.open_streams.track_inprogress():
            yield
    except ApiError as error:
        exchange.outcome = error.outcome
        raise
    except BaseException:
        exchange.outcome = "cancelled"
        raise
    finally:
        metrics.ended(exchange.outcome)
        exchange.record.outcome = exchange.outcome


@asynccontextmanager
async def _admitted(exchange: Exchange) -> AsyncIterator[None]:
    """Around an answer: within the quotas, which are charged as it is served; what was not needed is given back."""
    gateway, client, request = exchange.gateway, exchange.client, exchange.request
    model, limits, options = request.model, gateway.limits, request.options
    quota = gateway.tenants.current().quota_of(model)
    most = (limit.max_tokens for limit in request.limits)
    expected = 0.0 if options.pooled else limits.expected(model, most, options.n)
    headers = exchange.record.headers
    charge = await limits.admit(client.tenant, model, quota, request.prompt_tokens, expected, headers)
    exchange.charge = charge
    with closing(charge):
        try:
            yield
        except ModelChangedError:  # the other model is asked in its place
            await charge.unmake()
            raise


@asynccontextmanager
async def _submitted(exchange: Exchange) -> AsyncIterator[None]:
    """Around an answer: its prompts are with the scheduler; on leaving, what is not finished is cancelled."""
    request, link, metrics, charge = exchange.request, exchange.gateway.link, exchange.metrics, exchange.charge
    if request.options.pooled is None:
        exchange.answer = Answer(request, link, metrics, charge if charge.counts else None)
    else:
        exchange.answer = Pooling(request, link, metrics)
    try:
        async with exchange.answer:
            yield
    finally:
        _account(exchange)


def _account(exchange: Exchange) -> None:
    """Record and bill what was computed, however the answer ended."""
    answer, tenant = exchange.answer, exchange.client.tenant.name
    output_tokens = answer.usage["completion_tokens"]
    exchange.record.answered(answer)
    exchange.metrics.used(tenant, answer.prompt_tokens, output_tokens)
    if isinstance(answer, Answer):
        exchange.gateway.limits.answered(exchange.model_name, output_tokens, answer.choices)
