"""What a request may hold. Nothing that would change the answer is ignored: what is not served here is refused by name.

Types are strict (no "0.5" for 0.5), unknown names are errors, and every error carries the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_proto import sampling

MAX_CHOICES = 128
"""choices of one HTTP request: prompts times n"""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    # name -> values that ask for nothing
    "audio": (None,),
    "best_of": (None, 1),
    "function_call": (None, "none"),
    "functions": (None, []),
    "guided_json": (None,),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None,),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "response_format": (None, {"type": "text"}),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "verbosity": (None,),
    "web_search_options": (None,),
}

_UNION_MESSAGES = {
    "prompt": "must be a text, a list of texts, a list of token ids or a list of such lists",
    "stop": "must be a text or a list of at most 16 texts",
}

TokenId = Annotated[int, Field(ge=0, lt=2**32)]
StopString = Annotated[str, Field(min_length=1, max_length=512)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class StreamOptions(_Strict):
    """`include_usage`: one more chunk with the usage before the end."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class TextPart(_Strict):
    """A content part; other kinds (images, audio) are not served."""

    type: Literal["text"]
    text: str


class Message(_Strict):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: None = None

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError("content is missing")
        return self

    @property
    def text(self) -> str:
        """The content as one string, its parts on lines of their own."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class CommonRequest(_Strict):
    """What both endpoints take. Ranges are OpenAI's; top_k, min_p and below are known extensions."""

    model: str
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, ge=sampling.TOP_P.low, le=1)
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, max_length=sampling.MAX_LOGIT_BIAS
    )
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    stream: bool = False
    stream_options: StreamOptions | None = None

    top_k: int = Field(0, ge=-1, lt=2**31)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=sampling.REPETITION_PENALTY.low, le=sampling.REPETITION_PENALTY.high)
    stop_token_ids: list[TokenId] = Field(default_factory=list, max_length=128)
    min_tokens: int = Field(0, ge=0, lt=2**31)
    ignore_eos: bool = False
    return_token_ids: bool = False

    # accepted: they do not change the answer
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data

    @field_validator("logit_bias")
    @classmethod
    def _keys_are_token_ids(cls, bias: dict[str, float]) -> dict[str, float]:
        for key in bias:
            if not key.isdecimal() or not key.isascii() or len(key) > 9:
                raise ValueError(f"{key!r} is not a token id")
        return bias

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> CommonRequest:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options is allowed only with stream: true", param="stream_options")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def output_limit(self) -> int | None:
        """Output tokens at most; None: what the model's length leaves."""
        return self.max_tokens


class ChatRequest(CommonRequest):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequestError("top_logprobs is allowed only with logprobs: true", param="top_logprobs")
        return self

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def logprob_count(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(CommonRequest):
    """POST /v1/completions. `prompt`: text, texts, token ids or lists of token ids."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    max_tokens: int | None = Field(16, ge=1, lt=2**31)
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool = False

    @model_validator(mode="after")
    def _combinations(self) -> CompletionRequest:
        if self.echo and self.logprobs is not None:
            raise InvalidRequestError("echo together with logprobs is not supported", param="logprobs")
        if not self.prompt and self.prompt != "":
            raise InvalidRequestError("prompt must not be an empty list", param="prompt")
        if len(self.prompts) * self.n > MAX_CHOICES:
            message = f"{len(self.prompts)} prompts with n = {self.n} are more than {MAX_CHOICES} choices"
            raise InvalidRequestError(message, param="n")
        return self

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        match self.prompt:
            case str():
                return [self.prompt]
            case [int(), *_]:
                return [[token for token in self.prompt if isinstance(token, int)]]
            case _:
                return [prompt for prompt in self.prompt if not isinstance(prompt, int)]

    @property
    def logprob_count(self) -> int | None:
        return self.logprobs


RequestT = TypeVar("RequestT", ChatRequest, CompletionRequest)


def parse(kind: type[RequestT], body: bytes) -> RequestT:
    """Check a request body. Raises InvalidRequestError naming the parameter."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(data, dict):
        raise InvalidRequestError("The body must be a JSON object", code="invalid_json")
    for name in data.keys() & UNSUPPORTED.keys():
        _refuse_unless_neutral(name, data.pop(name))
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _as_api_error(error) from error


def _refuse_unless_neutral(name: str, value: Any) -> None:
    if not any(type(value) is type(neutral) and value == neutral for neutral in UNSUPPORTED[name]):
        raise InvalidRequestError(
            f"{name} is not supported here; leave it out", param=name, code="unsupported_parameter"
        )


def _as_api_error(error: ValidationError) -> InvalidRequestError:
    first = max(error.errors(include_url=False, include_context=False), key=lambda item: len(item["loc"]))
    param = "prompt" if first["loc"][:1] == ("prompt",) else _path(first["loc"])  # a union of lists has no one path
    if first["type"] == "extra_forbidden":
        return InvalidRequestError(
            f"{param} is not a parameter known here; leave it out", param=param, code="unsupported_parameter"
        )
    if first["type"] == "missing":
        return InvalidRequestError(f"{param} is missing", param=param, code="missing_parameter")
    message = _UNION_MESSAGES.get(param) or first["msg"].removeprefix("Value error, ")
    return InvalidRequestError(f"{param}: {message}", param=param, code="invalid_value")


def _path(loc: tuple[int | str, ...]) -> str:
    """`messages[0].content[1].type` from pydantic's location, without the names of union members."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif re.fullmatch(r"[a-z_0-9]+", part) and part not in {"str", "int", "float", "list", "dict", "constrained"}:
            path += f".{part}" if path else part
    return path
