"""Bodies of chats, whichever API they are of, as the one request that is worked on; and its errors in their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request import anthropic_chat
from aegaeon_gateway.request.anthropic_schema import CountRequest, MessagesRequest
from aegaeon_gateway.request.parse import check, decoded, parse
from aegaeon_gateway.request.schema import ChatRequest

_NAMES: dict[str, Mapping[str, str]] = {"messages": anthropic_chat.NAMES, "count_tokens": anthropic_chat.NAMES}


def chat_of_body(endpoint: str, body: bytes) -> ChatRequest:
    """Raises InvalidRequestError naming the parameter."""
    if endpoint == "chat":
        return parse(ChatRequest, body)
    kind = CountRequest if endpoint == "count_tokens" else MessagesRequest
    try:
        chat = anthropic_chat.chat_of(decoded(kind, body))
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply; send less", code="invalid_json") from error
    with named(endpoint):
        check(chat)
    return chat


@contextmanager
def named(endpoint: str) -> Iterator[None]:
    """Around what is done with the chat of a body. Raises InvalidRequestError in the endpoint's names."""
    try:
        yield
    except InvalidRequestError as error:
        if (name := _NAMES.get(endpoint, {}).get(error.param or "")) is None:
            raise
        message = error.message.replace(error.param or "", name, 1)
        raise InvalidRequestError(message, param=name, code=error.code) from error
