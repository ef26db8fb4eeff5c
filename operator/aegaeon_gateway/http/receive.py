"""The first step of a request: its body is read, bounded by what the client's models could use, and its model known."""

from __future__ import annotations

from aegaeon_gateway.http.admission import PEEK_BYTES, UNKNOWN_BODY_BYTES, body_bytes
from aegaeon_gateway.http.conversation import conversation_of
from aegaeon_gateway.http.exchange import Caller, Exchange
from aegaeon_gateway.models.catalog import served_length
from aegaeon_gateway.request.parse import names_of


async def receive(exchange: Exchange, caller: Caller[object]) -> None:
    """Read the body, the model that it names, and the conversation that it continues. Raises ApiError."""
    client, record = exchange.client, exchange.record
    body = await caller.read(_most_bytes(exchange), exchange.holding)
    name, previous = await _names_of(exchange, body)
    exchange.body, exchange.model_name = body, name
    record.model, record.tenant = name, client.tenant.name
    if previous and exchange.endpoint.name == "responses":
        exchange.history = await conversation_of(exchange.gateway.conversations, client.tenant.name, previous)
        exchange.holding.hold(len(body) + len(exchange.history))


def _most_bytes(exchange: Exchange) -> int:
    """The most bytes that the longest of the client's models could use. Raises UnauthorizedError when it may use
    none."""
    client, gateway = exchange.client, exchange.gateway
    client.check_any()
    visible = [m for m in gateway.catalog.models() if client.directory.visible(client.tenant, m.spec.name)]
    longest = max((body_bytes(served_length(m), exchange.endpoint) for m in visible), default=UNKNOWN_BODY_BYTES)
    return min(longest, gateway.config.max_body_bytes)


async def _names_of(exchange: Exchange, body: bytearray) -> tuple[str, str]:
    """The model that a body names, if the client may use it, and the response that it continues. Raises ApiError."""
    client, gateway = exchange.client, exchange.gateway
    if len(body) <= PEEK_BYTES:
        name, previous = names_of(body)
    else:
        name, previous = await gateway.workers.names_of(client.owner_of(""), body)
    client.directory.check(client.tenant, name, (model.spec.name for model in gateway.catalog.models()))
    return name, previous
