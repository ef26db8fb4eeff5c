"""What a request may hold. Nothing that would change the answer is ignored: what is not served here is refused by name.

Types are strict (no "0.5" for 0.5), unknown names are errors, and every error carries the parameter. msgspec checks
while it reads and stops at the first error, so a hostile body costs no more than a valid one of its length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from aegaeon_gateway.request.structured import StructuredFields
from aegaeon_proto import sampling

MAX_CHOICES = 128
"""choices of one HTTP request: prompts times n"""

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    # name -> values that ask for nothing
    "audio": (None,),
    "best_of": (None, 1),
    "function_call": (None, "none"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "parallel_tool_calls": (None,),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none"),
    "tools": (None, []),
    "verbosity": (None,),
    "web_search_options": (None,),
}
TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
StopString = Annotated[str, Meta(min_length=1, max_length=512)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
TokenCount = Annotated[int, Meta(ge=1, lt=2**31)]


class StreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """`include_usage`: one more chunk with the usage before the end."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None

    def __post_init__(self) -> None:
        if self.include_obfuscation:
            raise ValueError("include_obfuscation is not supported here")


class TextPart(Struct, forbid_unknown_fields=True, frozen=True):
    """A content part; other kinds (images, audio) are not served."""

    type: Literal["text"]
    text: str


class Message(Struct, forbid_unknown_fields=True, frozen=True):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: None = None

    def __post_init__(self) -> None:
        if self.content is None and self.role != "assistant":
            raise ValueError("content is missing")

    @property
    def text(self) -> str:
        """The content as one string, its parts on lines of their own."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class CommonRequest(StructuredFields, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What both endpoints take. Ranges are OpenAI's; top_k, min_p and below are known extensions.

    None is what a client says that leaves a parameter out, or gives null.
    """

    model: str
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=sampling.TOP_P.low, le=1)] | None = None
    choices: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = msgspec.field(default=None, name="n")
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=sampling.MAX_LOGIT_BIAS)] | None
    ) = None
    seed: int | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    max_tokens: TokenCount | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Share | None = None
    repetition_penalty: (
        Annotated[float, Meta(ge=sampling.REPETITION_PENALTY.low, le=sampling.REPETITION_PENALTY.high)] | None
    ) = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=128)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None

    # accepted: they do not change the answer
    user: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    # refused unless they ask for nothing
    audio: Raw | UnsetType = UNSET
    best_of: Raw | UnsetType = UNSET
    function_call: Raw | UnsetType = UNSET
    functions: Raw | UnsetType = UNSET
    modalities: Raw | UnsetType = UNSET
    parallel_tool_calls: Raw | UnsetType = UNSET
    prediction: Raw | UnsetType = UNSET
    reasoning_effort: Raw | UnsetType = UNSET
    store: Raw | UnsetType = UNSET
    suffix: Raw | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    tools: Raw | UnsetType = UNSET
    verbosity: Raw | UnsetType = UNSET
    web_search_options: Raw | UnsetType = UNSET

    @property
    def n(self) -> int:
        return self.choices or 1

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def output_limit(self) -> int | None:
        """Output tokens at most; None: what the model's length leaves."""
        return self.max_tokens


class ChatRequest(CommonRequest, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def logprob_count(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(CommonRequest, frozen=True, kw_only=True):
    """POST /v1/completions. `prompt`: text, texts, token ids or lists of token ids."""

    prompt: str | list[str | TokenId | Annotated[list[TokenId], Meta(min_length=1)]]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None

    @property
    def output_limit(self) -> int:
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """Of a request that `parse` gave: it has checked that all parts of `prompt` are of one type."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [cast("list[int]", self.prompt)]
        return cast("list[str | list[int]]", self.prompt)

    @property
    def logprob_count(self) -> int | None:
        return self.logprobs
