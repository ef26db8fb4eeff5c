"""Bodies of Anthropic's Messages API by their types, and what they may name without an effect."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

from aegaeon_gateway.request.anthropic_content import AnthropicMessage, AnthropicTool, Text, ToolChoice
from aegaeon_gateway.request.parameters import Hint, Known, NoEffect, Refused, refused, unused
from aegaeon_gateway.request.sampling_fields import CacheSalt, StopString, Temperature, TokenCount, TopK, TopP
from aegaeon_gateway.request.schema import MAX_TOOLS

ThinkingType = Literal["enabled", "disabled", "adaptive"]
THINKING = get_args(ThinkingType)


class Thinking(Struct, forbid_unknown_fields=True, frozen=True):
    """The switch of the model's reasoning. `budget_tokens`: for how long, of type enabled."""

    type: ThinkingType
    budget_tokens: TokenCount | None = None
    display: Literal["summarized", "omitted"] | None = None

    def __post_init__(self) -> None:
        if (self.budget_tokens is None) == (self.type == "enabled"):
            raise ValueError("budget_tokens goes with type enabled, and with no other")


class JsonOutput(Struct, forbid_unknown_fields=True, frozen=True):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


Effort = Literal["low", "medium", "high", "xhigh", "max"]
EFFORTS = get_args(Effort)


class OutputConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """How much the model thinks, and the form of its answer."""

    effort: Effort | None = None
    format: JsonOutput | None = None


class CountRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens: what is part of the prompt."""

    model: Annotated[str, Meta(description="a name of GET /v1/models")]
    messages: Annotated[
        list[AnthropicMessage],
        Meta(min_length=1, description="text, calls, results, thoughts; one of the assistant at the end is continued"),
    ]
    system: Annotated[str | list[Text] | None, Meta(description="comes before the messages")] = None
    tools: Annotated[
        Annotated[list[AnthropicTool], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="functions that the model may call; none that run on a server"),
    ] = None
    tool_choice: Annotated[
        ToolChoice | None, Meta(description="`auto`, `any`, `tool` or `none`; `disable_parallel_tool_use`: one at most")
    ] = None
    thinking: Annotated[
        Thinking | None,
        Meta(description="`enabled` ends it after `budget_tokens`; `adaptive`; `disabled` shows none"),
    ] = None
    output_config: Annotated[
        OutputConfig | None, Meta(description="`effort` for templates that know of it, `format`: a JSON schema")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None,
        Meta(description="variables of the chat template; `thinking` comes before its `enable_thinking`"),
    ] = None
    cache_salt: CacheSalt = None


class MessagesRequest(CountRequest, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """POST /v1/messages."""

    max_tokens: Annotated[TokenCount, Meta(description="output tokens at most")]
    stop_sequences: Annotated[
        Annotated[list[StopString], Meta(max_length=16)] | None, Meta(description="texts that end the answer")
    ] = None
    stream: Annotated[bool | None, Meta(description="server-sent events")] = None
    temperature: Temperature = None
    top_p: TopP = None
    top_k: TopK = None


_REFUSED = {
    **refused("ec_transfer_params", "kv_transfer_params", "mm_payload", "vllm_xargs", "watermarking"),
    "container": Refused("no code is executed", ({},)),
    "context_management": Hint("conversations are taken as they are", ({}, {"edits": []})),
    "diagnostics": Hint("there are no such diagnostics"),
    "inference_geo": Refused("where a model runs is not a request's choice"),
    "mcp_servers": Hint("no tool is called by the server", ([],)),
    "speed": Hint("a model's tier and a tenant's quota say who comes first", ("standard",)),
}
_NO_EFFECT = {
    **unused("return_mm_kwargs"),
    "cache_control": NoEffect(dict[str, Any] | None, "prompts are found by their content"),
    "metadata": NoEffect(dict[str, Any] | None, "tenants are known by their keys"),
    "service_tier": NoEffect(Literal["auto", "standard_only"] | None, "a tenant's tier counts"),
    "user_profile_id": NoEffect(str | None, "tenants are known by their keys"),
    "workspace_id": NoEffect(str | None, "tenants are known by their keys"),
}
MESSAGES = Known(_REFUSED, _NO_EFFECT)
"""of both endpoints"""
