"""From the bytes of a body to a request of schema.py, or an error that names the parameter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request import opening
from aegaeon_gateway.request.anthropic_schema import MESSAGES, CountRequest, MessagesRequest
from aegaeon_gateway.request.batch_schema import BatchRequest
from aegaeon_gateway.request.elsewhere import HONOURED, MEANINGFUL, POOLED
from aegaeon_gateway.request.open_chat import adapt_chat, adapt_completion, adapt_messages
from aegaeon_gateway.request.open_messages import adapt_message
from aegaeon_gateway.request.open_responses import adapt_response
from aegaeon_gateway.request.opening import Endpoint
from aegaeon_gateway.request.parameters import COMPLETIONS, Hint, Known
from aegaeon_gateway.request.pooled import BODIES, MAX_INPUTS, EmbeddingRequest
from aegaeon_gateway.request.receipt import Receipt
from aegaeon_gateway.request.responses_items import Item
from aegaeon_gateway.request.responses_schema import RESPONSES, ResponsesRequest
from aegaeon_gateway.request.schema import MAX_CHOICES, ChatRequest, CommonRequest, CompletionRequest, accepted
from aegaeon_gateway.request.texts import TOKENIZE, DetokenizeRequest, TokenizeRequest

_MESSAGES = {
    # by parameter, or by the last names of its path: where msgspec's own words say less
    "input": "must be a text, a list of texts, a list of token ids or a list of such lists, none of them empty",
    "prompt": "must be a text, a list of texts, a list of token ids or a list of such lists",
    "response_format.type": "must be text, json_object or json_schema",
    "role": "must be system, developer, user, assistant or tool",
    "stop_sequences": "must be a list of at most 16 texts",
    "stop": "must be a text or a list of at most 16 texts",
    "input.content.type": "must be a kind of text; other kinds of content are not served",
    "input.type": "must be message, function_call, function_call_output or reasoning",
    "encrypted_content": "cannot be read here; send reasoning as it came",
    "content.type": "must be text; other kinds of content are not served",
    "tools.type": "must be function; other kinds of tools are not served",
}


class _Named(Struct):
    model: str
    previous_response_id: Raw | UnsetType = UNSET


RequestT = TypeVar("RequestT", ChatRequest, CompletionRequest)
StructT = TypeVar("StructT", bound=Struct)
_ALONE = (BatchRequest, DetokenizeRequest, _Named)
KNOWN: dict[type[Struct], Known] = {
    ChatRequest: COMPLETIONS,
    CompletionRequest: COMPLETIONS,
    MessagesRequest: MESSAGES,
    CountRequest: MESSAGES,
    ResponsesRequest: RESPONSES,
    TokenizeRequest: TOKENIZE,
    **{body.kind: body.known for body in BODIES.values()},
}
"""requests by their type, with what they may name beside its fields"""
_GENERATING: dict[type[Struct], opening.Adapt] = {
    ChatRequest: adapt_chat,
    CompletionRequest: adapt_completion,
    MessagesRequest: adapt_message,
    CountRequest: adapt_message,
    ResponsesRequest: adapt_response,
}
_TABLES = [KNOWN[kind] for kind in _GENERATING]
_SIBLINGS = frozenset((*HONOURED, *(name for kind in _GENERATING for name in kind.__struct_encode_fields__)))
_REFUSED = {name: entry for table in _TABLES for name, entry in table.refused.items() if not isinstance(entry, Hint)}
_HARMLESS = frozenset(name for table in _TABLES for name in (*table.no_effect, *table.refused))
OPEN: dict[type[Struct], Endpoint] = {
    **{
        kind: Endpoint(kind, KNOWN[kind], adapt, _SIBLINGS, _HARMLESS, {**_REFUSED, **MEANINGFUL})
        for kind, adapt in _GENERATING.items()
    },
    TokenizeRequest: Endpoint(TokenizeRequest, TOKENIZE, adapt_messages),
    **{body.kind: Endpoint(body.kind, body.known, elsewhere=POOLED) for body in BODIES.values()},
}
"""requests that may name what has no effect"""
LABELS = opening.labels(OPEN.values())
"""of the counter of what is ignored"""
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {
    **{kind: msgspec.json.Decoder(accepted(kind, known)) for kind, known in KNOWN.items()},
    list[Item]: msgspec.json.Decoder(list[Item]),
    **{kind: msgspec.json.Decoder(kind) for kind in _ALONE},
}
_OF_LISTS: dict[Any, str] = {CompletionRequest: "prompt", EmbeddingRequest: "input"}
LONGEST_ID = 128
"""characters of the id of a response"""
_QUOTED_ID = re.compile(rb'"[A-Za-z0-9_.-]+"')
_INDEX = re.compile(r"\[\d+\]")
_PLACE = re.compile(r"(?s)(.*?)(?: - at `(?:key in )?\$(.*)`)?")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


def names_of(body: bytes | bytearray) -> tuple[str, str]:
    """The model that a body names, and the response that it goes on with or "": all else is skipped over.

    Costs some ns a byte. Raises InvalidRequestError.
    """
    named = _decode(_Named, body)
    previous = named.previous_response_id
    text = bytes(previous) if isinstance(previous, Raw) and len(bytes(previous)) <= LONGEST_ID + 2 else b""
    return named.model, text.decode()[1:-1] if _QUOTED_ID.fullmatch(text) else ""


def items_of_history(history: bytes) -> list[Item]:
    """The items of a conversation that was kept."""
    items: list[Item] = _DECODERS[list[Item]].decode(history)
    return items


def parse(kind: type[RequestT], body: bytes | bytearray, receipt: Receipt | None = None) -> RequestT:
    """Check a request body. Raises InvalidRequestError naming the parameter."""
    request = decoded(kind, body, receipt)
    check(request, receipt)
    return request


def decoded(kind: type[StructT], body: bytes | bytearray, receipt: Receipt | None = None) -> StructT:
    """A body by its types, without what is refused. Raises InvalidRequestError naming the parameter.

    `receipt` takes what has no effect; without one the request is strict, and that is refused.
    """
    try:
        request = _exactly(kind, body)
    except InvalidRequestError as error:
        if receipt is None or kind not in OPEN or error.code == "invalid_json":
            raise
        request = _exactly(kind, opening.opened(OPEN[kind], body, receipt))
    if receipt is not None and kind in KNOWN:
        for name in KNOWN[kind].no_effect:
            if getattr(request, name) is not None:
                receipt.ignore(name)
    return request


def _exactly(kind: type[StructT], body: bytes | bytearray) -> StructT:
    """Raises InvalidRequestError."""
    request: StructT = _decode(kind, body)
    for name, refused in KNOWN[kind].refused.items() if kind in KNOWN else ():
        if isinstance(value := getattr(request, name), Raw):
            refused.check(name, bytes(value))
    return request


def check(request: ChatRequest | CompletionRequest, receipt: Receipt | None = None) -> None:
    """Check the rules that types cannot express. Raises InvalidRequestError naming the parameter."""
    _check_common(request, receipt)
    if isinstance(request, ChatRequest):
        _check_chat(request)
    else:
        _check_completion(request)


def parse_embedding(body: bytes | bytearray, receipt: Receipt | None = None) -> EmbeddingRequest:
    """Check a body of /v1/embeddings. Raises InvalidRequestError naming the parameter."""
    request = decoded(EmbeddingRequest, body, receipt)
    if isinstance(request.input, list) and len(set(map(type, request.input))) != 1:
        raise _invalid("input", _MESSAGES["input"])
    if len(request.prompts) > MAX_INPUTS:
        raise _invalid("input", f"{len(request.prompts)} prompts are more than {MAX_INPUTS}")
    return request


def _decode(kind: type[Struct], body: bytes | bytearray) -> Any:
    try:
        return _DECODERS[kind].decode(body)
    except msgspec.ValidationError as error:
        raise _as_api_error(str(error), _OF_LISTS.get(kind)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply; send less", code="invalid_json") from error


def _check_common(request: CommonRequest, receipt: Receipt | None) -> None:
    for key in request.logit_bias or ():
        if not key.isdecimal() or not key.isascii() or len(key) > 9:
            raise _invalid("logit_bias", f"{key[:32]!r} is not a token id")
    if request.seed is not None and not -(2**63) <= request.seed < 2**64:
        raise _invalid("seed", "must be an integer of 64 bits")
    if request.include_usage and not request.stream:
        if receipt is None:
            raise InvalidRequestError("stream_options is allowed only with stream: true", param="stream_options")
        receipt.ignore("stream_options")
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequestError("prompt_logprobs is allowed only without stream", param="prompt_logprobs")


def _check_chat(request: ChatRequest) -> None:
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequestError("top_logprobs is allowed only with logprobs: true", param="top_logprobs")
    if request.max_tokens == 0:
        raise _invalid("max_tokens", "must be at least 1")
    if request.continue_final_message and request.generation_prompt:
        message = "continue_final_message is allowed only with add_generation_prompt: false"
        raise InvalidRequestError(message, param="continue_final_message")


def _check_completion(request: CompletionRequest) -> None:
    if request.max_tokens == 0 and not request.echo and request.prompt_logprobs is None:
        raise _invalid("max_tokens", "0 is allowed only with echo or prompt_logprobs")
    if not request.prompt and request.prompt != "":
        raise InvalidRequestError("prompt must not be an empty list", param="prompt")
    if isinstance(request.prompt, list) and len(set(map(type, request.prompt))) != 1:
        raise _invalid("prompt", _MESSAGES["prompt"])
    if len(request.prompts) * request.n > MAX_CHOICES:
        message = f"{len(request.prompts)} prompts with n = {request.n} are more than {MAX_CHOICES} choices"
        raise InvalidRequestError(message, param="n")


def _invalid(param: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {message}", param=param, code="invalid_value")


def _as_api_error(error: str, lists: str | None) -> InvalidRequestError:
    """msgspec says "Expected `str`, got `int` - at `$.messages[0].role`"; clients get the parts."""
    match = _PLACE.fullmatch(error)
    message, place = (match[1], match[2] or "") if match else (error, "")
    place = place.replace("[...]", "").removeprefix(".")
    if unknown := _UNKNOWN.fullmatch(message):
        return _unknown_name(_joined(place, unknown[1][:128]))
    if missing := _MISSING.fullmatch(message):
        param = _joined(place, missing[1])
        return InvalidRequestError(f"{param} is missing", param=param, code="missing_parameter")
    if not place:
        return InvalidRequestError("The body must be a JSON object", code="invalid_json")
    if lists is not None and _INDEX.sub("", place) == lists:  # a union of lists has no one path
        return _invalid(lists, _MESSAGES[lists])
    plain = message.replace(" | null", "").replace("`", "")
    names = _INDEX.sub("", place).split(".")
    return _invalid(place, _message(names) or plain)


def _message(names: Sequence[str]) -> str | None:
    """Our message for a place: by the whole path, its last name, or its last two."""
    keys = (".".join(names), names[-1], ".".join(names[-2:]))
    return next((message for key in keys if key not in _OF_LISTS.values() and (message := _MESSAGES.get(key))), None)


def _unknown_name(param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{param} is not a parameter known here; leave it out", param=param, code="unsupported_parameter"
    )


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
