"""The types of request bodies. Nothing that would change the answer is ignored: what is not served here is refused by
name.

Types are strict (no "0.5" for 0.5), unknown names are errors, and every error carries the parameter. msgspec checks
while it reads and stops at the first error, so a hostile body costs no more than a valid one of its length.
Descriptions go into /openapi.json and docs/reference/api.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from aegaeon_gateway.request.messages import AllowedChoice, AllowedTools, Message, NamedTool, Tool
from aegaeon_gateway.request.parameters import COMPLETIONS, Known
from aegaeon_gateway.request.sampling_fields import CacheSalt, LikeliestCount, TokenCount, TokenId
from aegaeon_gateway.request.structured import StructuredFields

MAX_CHOICES = 128
"""choices of one HTTP request: prompts times n"""
MAX_TOOLS = 1024
"""some clients pass on every tool of every MCP server that they know"""


class StreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """Options of a stream."""

    include_usage: Annotated[bool | None, Meta(description="one more chunk with the usage before the end")] = None
    continuous_usage_stats: Annotated[bool | None, Meta(description="the usage so far in every chunk")] = None
    include_obfuscation: bool | None = None

    def __post_init__(self) -> None:
        if self.include_obfuscation:
            raise ValueError("include_obfuscation is not supported here")


class CommonRequest(StructuredFields, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Fields that chats and completions take."""

    model: Annotated[str, Meta(description="a name of GET /v1/models")]
    choices: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None,
        Meta(description=f"choices of each prompt; prompts times n are {MAX_CHOICES} at most"),
    ] = msgspec.field(default=None, name="n")
    max_tokens: Annotated[Annotated[int, Meta(ge=0, lt=2**31)] | None, Meta(description="output tokens at most")] = None
    stream_options: Annotated[
        StreamOptions | None,
        Meta(description="`include_usage`, `continuous_usage_stats`: the usage at the end, in chunks"),
    ] = None
    prompt_logprobs: Annotated[
        LikeliestCount | None, Meta(description="logprobs of the prompt's tokens, and of so many likeliest for each")
    ] = None
    return_tokens_as_token_ids: Annotated[bool | None, Meta(description="logprobs name tokens `token_id:ID`")] = None
    return_token_ids: Annotated[bool | None, Meta(description="token ids of prompt and output beside the text")] = None
    add_special_tokens: Annotated[
        bool | None, Meta(description="what the tokenizer puts around a text (BOS); chats false, completions true")
    ] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1, lt=2**31)] | None,
        Meta(description="the prompt is cut to so many tokens; -1: to what the model's length leaves for output"),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"] | None, Meta(description="where a prompt is cut; left is the default")
    ] = None
    cache_salt: CacheSalt = None

    @property
    def limits_reasoning(self) -> bool:
        return self.thinking_token_budget is not None and self.thinking_token_budget >= 0

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
    def continuous_usage(self) -> bool:
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def output_limit(self) -> int | None:
        """Output tokens at most; None: what the model's length leaves."""
        return self.max_tokens


class ChatRequest(CommonRequest, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1, description="of text; dumped answers are taken as they are")]
    max_completion_tokens: Annotated[TokenCount | None, Meta(description="the same as `max_tokens`, before it")] = None
    logprobs: Annotated[bool | None, Meta(description="of the output's tokens")] = None
    top_logprobs: Annotated[LikeliestCount | None, Meta(description="of so many likeliest tokens for each")] = None
    echo: Annotated[bool | None, Meta(description="the last message comes first, if its role is the answer's own")] = (
        None
    )
    add_generation_prompt: Annotated[
        bool | None, Meta(description="the template's beginning of an answer ends the prompt; true is the default")
    ] = None
    continue_final_message: Annotated[
        bool | None, Meta(description="the last message is continued; only with `add_generation_prompt: false`")
    ] = None
    documents: Annotated[
        Annotated[list[dict[str, str]], Meta(max_length=1024)] | None,
        Meta(description="for templates that know of them"),
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description="variables of the chat template, such as `enable_thinking`")
    ] = None

    tools: Annotated[
        Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None, Meta(description="functions that the model may call")
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedTool | AllowedChoice | None,
        Meta(description="auto with tools, none without; `allowed_tools`: of some of them"),
    ] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="false: one call at most is shown")] = None
    include_reasoning: Annotated[bool | None, Meta(description="false: reasoning is not shown")] = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
        Meta(description="for templates that know of it; `enable_thinking` is false for none, else true"),
    ] = None

    @property
    def forces_tools(self) -> bool:
        """The output is calls, and nothing else."""
        if (allowed := self.allowed_tools) is not None:
            return allowed.mode == "required"
        return self.tool_choice not in (None, "none", "auto")

    @property
    def allowed_tools(self) -> AllowedTools | None:
        """The tools that alone may be called; None: any of them, or as tool_choice says."""
        return self.tool_choice.allowed_tools if isinstance(self.tool_choice, AllowedChoice) else None

    @property
    def callable_tools(self) -> Sequence[Tool]:
        """The tools that the prompt names; all where a grammar keeps the output to what is allowed."""
        tools, allowed = self.tools or (), self.allowed_tools
        if self.tool_choice == "none":
            return ()
        if allowed is None or self.forces_tools:
            return tools
        return [tool for tool in tools if tool.function.name in allowed.names]

    @property
    def barred_tools(self) -> Sequence[Tool]:
        """The tools that must not be called."""
        allowed = self.allowed_tools
        return [] if allowed is None else [tool for tool in self.tools or () if tool.function.name not in allowed.names]

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def logprob_count(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def generation_prompt(self) -> bool:
        """True when the answer is a message of its own."""
        return self.add_generation_prompt is not False


class CompletionRequest(CommonRequest, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: Annotated[
        str | list[str | TokenId | Annotated[list[TokenId], Meta(min_length=1)]],
        Meta(description="a text, texts, token ids or lists of token ids"),
    ]
    logprobs: Annotated[LikeliestCount | None, Meta(description="of each token, and of so many likeliest")] = None
    echo: Annotated[
        bool | None, Meta(description="the prompt comes first, with its logprobs; `max_tokens: 0`: nothing else")
    ] = None

    @property
    def output_limit(self) -> int:
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """Prompts of a request that `parse` returned: it has checked that all parts of `prompt` are of one type."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [cast("list[int]", self.prompt)]
        return cast("list[str | list[int]]", self.prompt)

    @property
    def logprob_count(self) -> int | None:
        return self.logprobs


def accepted(kind: type[Struct], known: Known = COMPLETIONS) -> type[Struct]:
    """`kind` with the fields of `known`, which are checked and then not looked at again."""
    if not (known.refused or known.no_effect):
        return kind
    refused = [(name, Raw | UnsetType, UNSET) for name in known.refused]
    unused = [(name, entry.type, None) for name, entry in known.no_effect.items()]
    return msgspec.defstruct(kind.__name__, [*refused, *unused], bases=(kind,), frozen=True, kw_only=True)
