"""From an HTTP request's body to what is asked of engines: checked, rendered and tokenized by a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b

from aegaeon_gateway.errors import ApiError, ModelChangedError, TokenizerError, model_failed, overloaded
from aegaeon_gateway.generation.request import Marks, Request, request_of
from aegaeon_gateway.http.admission import (
    PEEK_BYTES,
    UNKNOWN_BODY_BYTES,
    Client,
    body_bytes,
    check_body,
)
from aegaeon_gateway.http.gateway import Gateway
from aegaeon_gateway.models.catalog import served_length
from aegaeon_gateway.models.contents import ModelText
from aegaeon_gateway.request.parse import names_of
from aegaeon_gateway.tenancy import ALIKE, message_of
from aegaeon_gateway.workers.wire import Answered, Endpoint, Job
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

_PREFIXES: dict[Endpoint, str] = {
    "chat": "chatcmpl-",
    "completions": "cmpl-",
    "messages": "msg_",
    "responses": "resp_",
    "embeddings": "embd-",
    "rerank": "rerank-",
    "score": "score-",
}
_KEPT_BYTES = 16384  # of a body while it is answered: should its model change at this moment, the prompt is made anew


@dataclass(slots=True)
class Received:
    """A request as it came; `body` is None once it is too large to be kept for a second time. `history`: the
    conversation that it goes on with. `tries`: how often its prompt was made."""

    id: str
    endpoint: Endpoint
    client: Client
    model: str
    arrived: float
    body: bytearray | None
    marks: Marks
    history: bytes = b""
    defer_s: float = 0.0
    tries: int = 0

    def next_id(self) -> str:
        """Of its next submission. Each has its own: what engines still say of the former one is not of the answer."""
        self.tries += 1
        again = f".{self.tries}" if self.tries > 1 else ""
        return f"{_PREFIXES[self.endpoint]}{self.id}{again}"

    def prepared(self) -> None:
        """A large body is not kept beside the prompt that was made of it."""
        if len(self.body or ()) + len(self.history) > _KEPT_BYTES:
            self.body, self.history = None, b""


class Preparation:
    """The steps before a submission, in the order in which the handlers take them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def most_bytes(self, client: Client, endpoint: Endpoint) -> int:
        """Of a body of this client: what the longest of its models could use. Raises UnauthorizedError without any."""
        client.check_any()
        mine = [m for m in self._gateway.catalog.models() if client.directory.visible(client.tenant, m.spec.name)]
        longest = max((body_bytes(served_length(model), endpoint) for model in mine), default=UNKNOWN_BODY_BYTES)
        return min(longest, self._gateway.config.max_body_bytes)

    async def names_of(self, client: Client, body: bytearray) -> tuple[str, str]:
        """The model that a body names, if the client may use it, and a response to go on with. Raises ApiError."""
        if len(body) <= PEEK_BYTES:
            name, previous = names_of(body)
        else:
            name, previous = await self._gateway.workers.names_of(client.owner_of(""), body)
        client.directory.check(client.tenant, name, (model.spec.name for model in self._gateway.catalog.models()))
        return name, previous

    async def ready(self, name: str) -> ModelStatus:
        """The model once it may be asked. Raises ApiError."""
        return await self._gateway.catalog.ready(name, self._gateway.config.hold_s)

    async def request(self, received: Received, model: ModelStatus) -> Request:
        """The order of checks: what costs least first. Raises ApiError."""
        body = received.body
        assert body is not None  # it is prepared again only while it is there
        try:
            text, job = await self._job(received, body, model)
            tail = received.history + body if received.history else body
            with self._loadable(model), self._gateway.texts.used(text):
                done = await self._gateway.workers.prepare(received.client.owner_of(received.model), job, tail)
        except ApiError as error:
            self._gateway.metrics.of(received.model).ended(error.outcome)
            raise
        received.prepared()
        made = request_of(received.next_id(), model.spec, text.vocabulary, done, received.arrived, received.marks)
        tenant = received.client.tenant
        salt = self._gateway.salts.of(tenant, model.spec.prefix_share, made.options.cache_salt)
        terms = tenant.terms.get(received.model, ALIKE).lowered(made.options.service_tier)
        asked = None if terms == ALIKE else message_of(terms)
        return replace(made, tenant=tenant.name, terms=asked, defer_s=received.defer_s, salt=salt)

    async def answer(self, received: Received, model: ModelStatus) -> tuple[Answered, bytes]:
        """An answer that needs no engine, with its body. Raises ApiError."""
        body = received.body
        assert body is not None
        text, job = await self._job(received, body, model)
        with self._loadable(model), self._gateway.texts.used(text):
            return await self._gateway.workers.answer(received.client.owner_of(received.model), job, body)

    async def _job(self, received: Received, body: bytearray, model: ModelStatus) -> tuple[ModelText, Job]:
        """Raises ApiError."""
        text = await self._text(model, received.arrived + self._gateway.config.hold_s)
        length, spec = served_length(model) or text.max_positions, model.spec
        check_body(len(body) + len(received.history), length, received.endpoint)
        job = Job(
            key=text.key,
            endpoint=received.endpoint,
            model=received.model,
            length=length,
            calls=spec.tool_calls,
            reasoning=spec.reasoning,
            task=spec.task,
            matryoshka=spec.matryoshka,
            share=blake2b(received.client.owner_of(received.model).encode(), digest_size=8).digest(),
            history=len(received.history),
            public=tuple(spec.public_prompts),
            strict=self._gateway.config.strict or received.client.tenant.strict,
        )
        return text, job

    async def is_another(self, model: ModelStatus, error: ApiError) -> bool:
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

    @contextmanager
    def _loadable(self, model: ModelStatus) -> Iterator[None]:
        """Around a job: a model that cannot be loaded again is forgotten. Raises ApiError."""
        try:
            yield
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
