"""From the bytes of a body to a request of schema.py, or an error that names the parameter."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
import orjson
from msgspec import Raw, Struct

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.schema import MAX_CHOICES, UNSUPPORTED, ChatRequest, CommonRequest, CompletionRequest

_NEUTRAL_BYTES = 64  # every neutral value is shorter; what is longer is not even parsed

_MESSAGES = {
    # by parameter, or by the last name of its path: where msgspec's own words say less
    "prompt": "must be a text, a list of texts, a list of token ids or a list of such lists",
    "response_format.type": "must be text, json_object or json_schema",
    "role": "must be system, developer, user or assistant",
    "service_tier": "must be auto or default",
    "stop": "must be a text or a list of at most 16 texts",
    "type": "must be text; other kinds of content are not served",
}


class _ModelOnly(Struct):
    model: str


RequestT = TypeVar("RequestT", ChatRequest, CompletionRequest)
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (ChatRequest, CompletionRequest, _ModelOnly)
}
_PLACE = re.compile(r"(?s)(.*?)(?: - at `(?:key in )?\$(.*)`)?")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)


def model_of(body: bytes | bytearray) -> str:
    """The model that a body names, everything else skipped over (some ns a byte). Raises InvalidRequestError."""
    model: str = _decode(_ModelOnly, body).model
    return model


def parse(kind: type[RequestT], body: bytes | bytearray) -> RequestT:
    """Check a request body. Raises InvalidRequestError naming the parameter."""
    request: RequestT = _decode(kind, body)
    for name, neutral in UNSUPPORTED.items():
        if isinstance(value := getattr(request, name), Raw):
            _refuse_unless_neutral(name, bytes(value), neutral)
    _check_common(request)
    if isinstance(request, ChatRequest):
        _check_chat(request)
    else:
        _check_completion(request)
    return request


def _decode(kind: type[Struct], body: bytes | bytearray) -> Any:
    try:
        return _DECODERS[kind].decode(body)
    except msgspec.ValidationError as error:
        raise _as_api_error(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise InvalidRequestError("The body is nested too deeply; send less", code="invalid_json") from error


def _refuse_unless_neutral(name: str, raw: bytes, neutral: tuple[Any, ...]) -> None:
    value = orjson.loads(raw) if len(raw) <= _NEUTRAL_BYTES else ...
    if not any(type(value) is type(one) and value == one for one in neutral):
        raise InvalidRequestError(
            f"{name} is not supported here; leave it out", param=name, code="unsupported_parameter"
        )


def _check_common(request: CommonRequest) -> None:
    for key in request.logit_bias or ():
        if not key.isdecimal() or not key.isascii() or len(key) > 9:
            raise _invalid("logit_bias", f"{key[:32]!r} is not a token id")
    if request.seed is not None and not -(2**63) <= request.seed < 2**64:
        raise _invalid("seed", "must be an integer of 64 bits")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("stream_options is allowed only with stream: true", param="stream_options")


def _check_chat(request: ChatRequest) -> None:
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequestError("top_logprobs is allowed only with logprobs: true", param="top_logprobs")


def _check_completion(request: CompletionRequest) -> None:
    if request.echo and request.logprobs is not None:
        raise InvalidRequestError("echo together with logprobs is not supported", param="logprobs")
    if not request.prompt and request.prompt != "":
        raise InvalidRequestError("prompt must not be an empty list", param="prompt")
    if isinstance(request.prompt, list) and len(set(map(type, request.prompt))) != 1:
        raise _invalid("prompt", _MESSAGES["prompt"])
    if len(request.prompts) * request.n > MAX_CHOICES:
        message = f"{len(request.prompts)} prompts with n = {request.n} are more than {MAX_CHOICES} choices"
        raise InvalidRequestError(message, param="n")


def _invalid(param: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {message}", param=param, code="invalid_value")


def _as_api_error(error: str) -> InvalidRequestError:
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
    if place.startswith("prompt"):  # a union of lists has no one path
        place = "prompt"
    plain = message.replace(" | null", "").replace("`", "")
    return _invalid(place, _MESSAGES.get(place, _MESSAGES.get(place.rpartition(".")[2], plain)))


def _unknown_name(param: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{param} is not a parameter known here; leave it out", param=param, code="unsupported_parameter"
    )


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
