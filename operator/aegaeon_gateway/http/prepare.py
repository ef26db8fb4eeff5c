"""The second step of a request: a worker checks its body, renders and tokenizes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from typing import TypeAlias, TypeVar

from aegaeon_gateway.errors import (
    ApiError,
    ModelChangedError,
    TextDroppedError,
    TokenizerError,
    model_failed,
    overloaded,
)
from aegaeon_gateway.generation.request import Request, request_of
from aegaeon_gateway.http.admission import check_body
from aegaeon_gateway.http.exchange import Exchange
from aegaeon_gateway.http.ignored import tell_ignored
from aegaeon_gateway.http.intake import TOKEN_BYTES
from aegaeon_gateway.models.catalog import served_length
from aegaeon_gateway.models.contents import ModelText
from aegaeon_gateway.tenancy import lowered, message_of
from aegaeon_gateway.workers.wire import Job
from aegaeon_proto.engine.catalog import ALIKE

T = TypeVar("T")
Work: TypeAlias = Callable[[str, Job, bytes | bytearray], Awaitable[T]]


async def prepare(exchange: Exchange) -> None:
    """Make the request of engines, for the model as it is now. Raises ApiError."""
    with exchange.record.part("prepare"):
        request = exchange.request = await _request(exchange)
    tell_ignored(exchange.record, request.ignored, exchange.gateway.metrics)
    exchange.holding.hold(request.prompt_tokens * TOKEN_BYTES + len(request.conversation))
    if exchange.endpoint.renderer is not None:
        exchange.renderer = exchange.endpoint.renderer(request)


async def worker_answer(exchange: Exchange) -> bytes:
    """The body of an answer that needs no engine. Raises ApiError."""
    gateway = exchange.gateway
    _, (answer, rendered) = await _by_worker(exchange, gateway.workers.answer)
    tell_ignored(exchange.record, answer.ignored, gateway.metrics)
    return rendered


async def is_another(exchange: Exchange, error: ApiError) -> bool:
    """True when the name stands for another model by now; where the scheduler reports that, wait for its catalog."""
    identity, catalog = exchange.model.spec.identity, exchange.gateway.catalog

    def same() -> bool:
        known = catalog.find(exchange.model_name)
        return known is not None and known.spec.identity == identity

    try:
        async with asyncio.timeout(exchange.gateway.config.hold_s):
            while isinstance(error, ModelChangedError) and same():
                await catalog.changed()
    except TimeoutError:
        return False
    return catalog.find(exchange.model_name) is not None and not same()


async def _request(exchange: Exchange) -> Request:
    """The order of checks: what costs least first. Raises ApiError."""
    gateway, client = exchange.gateway, exchange.client
    try:
        text, done = await _by_worker(exchange, gateway.workers.prepare)
    except ApiError as error:
        exchange.metrics.ended(error.outcome)
        raise
    exchange.drop_large_body()
    spec = exchange.model.spec
    made = request_of(exchange.next_id(), spec, text.vocabulary, done, exchange.arrived, exchange.record.marks)
    salt = gateway.salts.of(client.tenant, spec.prefix_share, made.options.cache_salt)
    terms = lowered(client.tenant.terms.get(exchange.model_name, ALIKE), made.options.service_tier)
    message = None if terms == ALIKE else message_of(terms)
    return replace(made, tenant=client.tenant.name, terms=message, defer_s=exchange.defer_s, salt=salt)


async def _by_worker(exchange: Exchange, work: Work[T]) -> tuple[ModelText, T]:
    """The model's text, and a worker's reply; again when the text was dropped before a worker had the job.

    Raises ApiError.
    """
    gateway = exchange.gateway
    while True:
        text, job = await _job(exchange)
        body = exchange.history + _body(exchange) if exchange.history else _body(exchange)
        try:
            with _loadable(exchange), gateway.texts.used(text):
                return text, await work(exchange.client.owner_of(exchange.model_name), job, body)
        except TextDroppedError:
            if time.monotonic() >= exchange.arrived + gateway.config.hold_s:
                raise
        exchange.model = await gateway.catalog.ready(exchange.model_name, gateway.config.hold_s)


async def _job(exchange: Exchange) -> tuple[ModelText, Job]:
    """Raises ApiError."""
    config, client, spec = exchange.gateway.config, exchange.client, exchange.model.spec
    text = await _text(exchange)
    length = served_length(exchange.model) or text.max_positions
    check_body(len(_body(exchange)) + len(exchange.history), length, exchange.endpoint)
    job = Job(
        key=text.key,
        endpoint=exchange.endpoint.name,
        model=exchange.model_name,
        length=length,
        calls=spec.tool_calls,
        reasoning=spec.reasoning,
        task=spec.task,
        matryoshka=spec.matryoshka,
        share=blake2b(client.owner_of(exchange.model_name).encode(), digest_size=8).digest(),
        history=len(exchange.history),
        public=tuple(spec.public_prompts),
        strict=config.strict or client.tenant.strict,
    )
    return text, job


async def _text(exchange: Exchange) -> ModelText:
    """The tokenizer and template of the model, once they are loaded. Raises ApiError."""
    until = exchange.arrived + exchange.gateway.config.hold_s
    try:
        async with asyncio.timeout(max(until - time.monotonic(), 0.1)):
            return await exchange.gateway.texts.get(exchange.model.spec.source)
    except TimeoutError:
        raise overloaded(f"The tokenizer of {exchange.model_name!r} is still loading; try again.") from None
    except TokenizerError as error:
        raise model_failed(exchange.model_name, str(error)) from error


@contextmanager
def _loadable(exchange: Exchange) -> Iterator[None]:
    """Around a job: a model that cannot be loaded again is forgotten. Raises ApiError."""
    try:
        yield
    except TokenizerError as error:
        exchange.gateway.texts.forget(exchange.model.spec.source)
        raise model_failed(exchange.model_name, str(error)) from error


def _body(exchange: Exchange) -> bytearray:
    assert exchange.body is not None, "a request is prepared again only while its body is kept"
    return exchange.body
