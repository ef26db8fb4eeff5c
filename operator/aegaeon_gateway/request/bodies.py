"""Bodies of chats, whichever API they are of, as the one request that is worked on; and its errors in their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request import anthropic_chat, responses_chat
from aegaeon_gateway.request.anthropic_schema import CountRequest, MessagesRequest
from aegaeon_gateway.request.parse import check, decoded, items_of_history, parse
from aegaeon_gateway.request.receipt import Receipt
from aegaeon_gateway.request.responses_schema import CustomTool, ResponsesRequest
from aegaeon_gateway.request.responses_tools import RequestTool, request_tools
from aegaeon_gateway.request.schema import ChatRequest

_NAMES: dict[str, Mapping[str, str]] = {
    "messages": anthropic_chat.NAMES,
    "count_tokens": anthropic_chat.NAMES,
    "responses": responses_chat.NAMES,
}


@dataclass(frozen=True, slots=True)
class ParsedChat:
    """A chat. Of a response: `echoed` is what it repeats of its request, `conversation` all items, where it is kept,
    `tools` those that a chat has otherwise."""

    chat: ChatRequest
    echoed: bytes = b""
    conversation: bytes = b""
    tools: Sequence[RequestTool] = ()


def parsed_chat(endpoint: str, body: bytes, history: int = 0, receipt: Receipt | None = None) -> ParsedChat:
    """Parse the chat of a body; `history`: bytes at its beginning that are a conversation to continue.

    `receipt`: see parse.decoded. Raises InvalidRequestError naming the parameter.
    """
    try:
        made = _parsed(endpoint, body, history, receipt)
    except (RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequestError("The body is nested too deeply, or is no Unicode", code="invalid_json") from error
    with named(endpoint):
        check(made.chat, receipt)
    return made


def _parsed(endpoint: str, body: bytes, history: int, receipt: Receipt | None) -> ParsedChat:
    match endpoint:
        case "count_tokens":
            return ParsedChat(anthropic_chat.chat_of(decoded(CountRequest, body, receipt)))
        case "messages":
            return ParsedChat(anthropic_chat.chat_of(decoded(MessagesRequest, body, receipt)))
        case "responses":
            return _response(body, history, receipt)
    return ParsedChat(parse(ChatRequest, body, receipt))


def _response(body: bytes, history: int, receipt: Receipt | None) -> ParsedChat:
    request = decoded(ResponsesRequest, body[history:], receipt)
    before = items_of_history(body[:history]) if history else []
    conversation = b""
    if request.store is not False:
        conversation = msgspec.json.encode([*before, *responses_chat.items_of(request)])
    chat = responses_chat.chat_of(request, before)
    for at, tool in enumerate(request.tools or ()):
        if isinstance(tool, CustomTool) and (tool.format or {}).get("type", "text") != "text":
            _unconstrained(f"tools[{at}].format", receipt)
    tools = [tool for tool in request_tools(request.tools or ()) if tool.custom or tool.namespace]
    return ParsedChat(chat, msgspec.json.encode(responses_chat.echoed(request)), conversation, tools)


def _unconstrained(param: str, receipt: Receipt | None) -> None:
    """The model reads the grammar of a custom tool, and no engine constrains it. Raises InvalidRequestError."""
    if receipt is None:
        message = f"{param} is not supported here: a custom tool's text is not constrained; leave it out"
        raise InvalidRequestError(message, param=param, code="unsupported_parameter")
    receipt.ignore(param, "grammar")


def name_at(endpoint: str, param: str) -> str:
    """A chat's parameter, as requests of the endpoint name it."""
    return _NAMES.get(endpoint, {}).get(param, param)


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
