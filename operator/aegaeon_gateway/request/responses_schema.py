"""Bodies of POST /v1/responses by their types, and what they may name without an effect."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct

from aegaeon_gateway.request.messages import ToolName
from aegaeon_gateway.request.parameters import Hint, Known, NoEffect, Refused, refused, unused
from aegaeon_gateway.request.responses_items import Item
from aegaeon_gateway.request.sampling_fields import CacheSalt, LikeliestCount, SamplingFields, TokenCount
from aegaeon_gateway.request.schema import MAX_TOOLS
from aegaeon_gateway.request.structured import StructuredOutputs

LOGPROBS = "message.output_text.logprobs"
Included = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]
INCLUDED = get_args(Included)


class ResponseTool(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="function"):
    """A function that a model may call. `parameters`: a JSON Schema."""

    name: ToolName
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None
    allowed_callers: Annotated[list[Literal["direct"]], Meta(max_length=1)] | None = None
    defer_loading: Literal[False] | None = None
    output_schema: None = None


class CustomTool(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="custom"):
    """A tool that a model may call with one text. `format`: a grammar of that text, which the model alone reads."""

    name: ToolName
    description: str | None = None
    format: dict[str, Any] | None = None
    allowed_callers: Annotated[list[Literal["direct"]], Meta(max_length=1)] | None = None
    defer_loading: Literal[False] | None = None


class NamespaceTool(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="namespace"):
    """Tools under one name: a call says it beside its own."""

    name: ToolName
    tools: Annotated[list[ResponseTool | CustomTool], Meta(max_length=MAX_TOOLS)]
    description: str | None = None


AnyTool = ResponseTool | CustomTool | NamespaceTool
TOOL_TYPES = tuple(str(kind.__struct_config__.tag) for kind in (ResponseTool, CustomTool, NamespaceTool))
"""a tuple, since a body may have any value where a type belongs, and not all can be hashed"""


class NamedCustomTool(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="custom"):
    """A `tool_choice` of one custom tool."""

    name: ToolName


class NamedResponseTool(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="function"):
    """A `tool_choice` of one function."""

    name: ToolName


class ResponseToolReference(Struct, forbid_unknown_fields=True, frozen=True):
    """One of the request's tools, by its name."""

    type: Literal["function", "custom"]
    name: ToolName


class AllowedResponseTools(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="allowed_tools"):
    """A `tool_choice` of some of the tools: under `auto` any may be called, under `required` one at least is."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ResponseToolReference], Meta(min_length=1)]


class TextFormat(Struct, forbid_unknown_fields=True, frozen=True):
    """The form of the output. It follows the schema with and without `strict`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """The form of the text."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Struct, forbid_unknown_fields=True, frozen=True):
    """How much the model thinks. Thoughts are shown as they are, so that there are no summaries of them."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """Nothing that has an effect: the last event has the usage anyway."""

    include_obfuscation: Literal[False] | None = None
    include_usage: bool | None = None


class ResponsesRequest(SamplingFields, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """POST /v1/responses."""

    model: Annotated[str, Meta(description="a name of GET /v1/models")]
    input: Annotated[
        str | list[Item],
        Meta(description="a text, or items: messages, calls, their outputs, reasoning; dumped answers as they are"),
    ]
    instructions: Annotated[str | None, Meta(description="come before everything else; of this request alone")] = None
    previous_response_id: Annotated[
        str | None, Meta(description="a response that is kept: its input and output come first")
    ] = None
    store: Annotated[bool | None, Meta(description="false: the response is not kept; true is the default")] = None
    background: Annotated[
        bool | None, Meta(description="true: it is answered at once and generated then; not with `stream`")
    ] = None
    metadata: Annotated[dict[str, str] | None, Meta(description="comes back with the response")] = None
    max_output_tokens: Annotated[TokenCount | None, Meta(description="output tokens at most")] = None
    text: Annotated[
        TextConfig | None, Meta(description="`format`: text, a JSON object, or a JSON schema that the output follows")
    ] = None
    tools: Annotated[
        Annotated[list[AnyTool], Meta(max_length=MAX_TOOLS)] | None,
        Meta(description="functions, custom tools and namespaces of both; none that run on a server"),
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedResponseTool | NamedCustomTool | AllowedResponseTools | None,
        Meta(description="auto with tools; `allowed_tools`: of some of them"),
    ] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="false: one call at most is shown")] = None
    reasoning: Annotated[
        Reasoning | None, Meta(description="`effort` for templates that know of it; thoughts are shown in full")
    ] = None
    include_reasoning: Annotated[bool | None, Meta(description="false: reasoning is not shown")] = None
    include: Annotated[
        list[Included] | None,
        Meta(description="logprobs of the text; reasoning is never encrypted"),
    ] = None
    top_logprobs: Annotated[
        LikeliestCount | None, Meta(description="of so many likeliest tokens; with logprobs in `include`")
    ] = None
    structured_outputs: Annotated[StructuredOutputs | None, Meta(description="as in chats, instead of `text`")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="variables of the chat template")] = None
    cache_salt: CacheSalt = None
    stream_options: Annotated[ResponseStreamOptions | None, Meta(description="nothing that has an effect")] = None

    @property
    def with_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())


_REFUSED = {
    **refused("ec_transfer_params", "kv_transfer_params", "media_io_kwargs", "mm_payload"),
    **refused("mm_processor_kwargs", "vllm_xargs", "watermarking"),
    "context_management": Hint("conversations are taken as they are", ([],)),
    "conversation": Refused("use previous_response_id"),
    "enable_response_messages": Refused("POST /tokenize shows the prompt's tokens", (False,)),
    "moderation": Refused("nothing is moderated"),
    "previous_input_messages": Refused("send what came before in input"),
    "prompt": Refused("there are no stored prompts"),
    "truncation": Hint("a conversation is never cut", ("disabled",)),
}
_NO_EFFECT = {
    **unused("request_id", "return_mm_kwargs", "session_id"),
    "max_tool_calls": NoEffect(int | None, "no tool is called by the server"),
    "prompt_cache_key": NoEffect(str | None, "prompts are found by their content"),
    "prompt_cache_options": NoEffect(dict[str, Any] | None, "prompts are found by their content"),
    "prompt_cache_retention": NoEffect(str | None, "what is cached stays while there is room"),
    "safety_identifier": NoEffect(str | None, "tenants are known by their keys"),
    "user": NoEffect(str | None, "tenants are known by their keys"),
}
RESPONSES = Known(_REFUSED, _NO_EFFECT)
