"""Conversations over several responses: one is continued from what was kept, and kept to be continued."""

from __future__ import annotations

from aegaeon_gateway.answer.responses import ResponsesRenderer
from aegaeon_gateway.conversations import Conversations
from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.http.exchange import Exchange


async def conversation_of(conversations: Conversations, tenant: str, id_: str) -> bytes:
    """The items of a response and of all before it. Raises InvalidRequestError, UnavailableError."""
    kept = await conversations.get(tenant, id_)
    if kept is None:
        message = f"Previous response with id {id_!r} not found; it was not kept, or not for so long."
        raise InvalidRequestError(message, param="previous_response_id", code="previous_response_not_found")
    if kept.beat:
        message = f"Previous response with id {id_!r} is not complete; wait until it is."
        raise InvalidRequestError(message, param="previous_response_id", code="previous_response_not_complete")
    return kept.conversation


async def keep(exchange: Exchange) -> None:
    """Keep a complete response before its client can name it, if its request wants it kept."""
    renderer = exchange.renderer
    if isinstance(renderer, ResponsesRenderer) and (kept := renderer.kept(exchange.answer.usage)) is not None:
        tenant = exchange.client.tenant.name
        if not await exchange.gateway.conversations.put(tenant, exchange.request.id, kept):
            renderer.was_not_kept()
