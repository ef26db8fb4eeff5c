"""One request and its answer, as the steps of serve.py know it, and the two seams at its ends: caller and writer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from aegaeon_gateway.answer.answer import Answer
from aegaeon_gateway.answer.pooled import Pooling
from aegaeon_gateway.answer.render import Renderer
from aegaeon_gateway.answer.responses import ResponsesRenderer
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.http.admission import Client
from aegaeon_gateway.http.endpoints import Endpoint
from aegaeon_gateway.http.gateway import Gateway
from aegaeon_gateway.http.intake import Holding
from aegaeon_gateway.http.record import Record
from aegaeon_gateway.metrics import ModelMetrics
from aegaeon_gateway.tenancy import Charge
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

_KEPT_BYTES = 16384  # of a body while it is answered: if its model changes at this moment, the prompt is made again

T_co = TypeVar("T_co", covariant=True)


@dataclass(slots=True)
class Exchange:
    """A request from its arrival to the end of its answer. The steps set the fields from `holding` on, in this order.

    `defer_s`: of a batch, whose tokens are due later. `arrived`: time.monotonic().
    """

    gateway: Gateway
    endpoint: Endpoint
    client: Client
    record: Record
    defer_s: float = 0.0
    arrived: float = field(default_factory=time.monotonic)
    # receive
    holding: Holding = field(init=False)
    model_name: str = field(init=False)
    body: bytearray | None = field(init=False)
    """None once it is too large to be kept for a second time"""
    history: bytes = b""
    """the conversation that it continues"""
    # prepare
    model: ModelStatus = field(init=False)
    tries: int = 0
    """how often its prompt was made"""
    request: Request = field(init=False)
    renderer: Renderer = field(init=False)
    """of a generated answer"""
    # admit
    charge: Charge = field(init=False)
    # submit
    answer: Answer | Pooling = field(init=False)
    # render
    outcome: str = ""
    """as in Record"""

    @property
    def metrics(self) -> ModelMetrics:
        """The metrics of its model."""
        return self.gateway.metrics.of(self.model_name)

    @property
    def in_background(self) -> bool:
        """No client waits for its answer, which is generated."""
        made = self.renderer if self.endpoint.renderer is not None else None
        return isinstance(made, ResponsesRenderer) and made.background

    def next_id(self) -> str:
        """The id of its next submission. Each has its own: what engines still send for the former one is dropped."""
        self.tries += 1
        again = f".{self.tries}" if self.tries > 1 else ""
        return f"{self.endpoint.id_prefix}{self.record.id}{again}"

    def drop_large_body(self) -> None:
        """Keep no large body beside the prompt that was made of it."""
        if len(self.body or ()) + len(self.history) > _KEPT_BYTES:
            self.body, self.history = None, b""


class Writer(Protocol[T_co]):
    """Writes the answer of an exchange that is submitted."""

    async def render(self, exchange: Exchange) -> T_co:
        """Write the answer as engines generate it. Raises its ApiError while the caller can still receive another
        status; a later error is part of what is written, and sets `outcome`."""
        ...


class Caller(Protocol[T_co]):
    """Sends the request and takes the answer: an HTTP client, or a batch with one of its lines."""

    async def read(self, most_bytes: int, holding: Holding) -> bytearray:
        """Read the body. Raises BodyTooLargeError, UnavailableError."""
        ...

    def writer(self, exchange: Exchange) -> Writer[T_co]:
        """Choose the writer of a prepared request. Raises InvalidRequestError for an answer that it cannot take."""
        ...

    async def detach(self, exchange: Exchange) -> T_co:
        """Answer at once and generate in the background. Raises InvalidRequestError, UnavailableError."""
        ...
