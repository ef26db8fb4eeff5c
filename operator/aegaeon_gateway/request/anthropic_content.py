"""Messages and tools of Anthropic's API, as its clients write them and as they send answers back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from aegaeon_gateway.request.messages import ToolName

Nothing = Annotated[list[Any], Meta(max_length=0)]
"""a list that says nothing"""


class TextBlock(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str
    cache_control: Raw | UnsetType = UNSET
    citations: Nothing | None = None


class Text(Struct, forbid_unknown_fields=True, frozen=True):
    """The same where there is nothing but text."""

    type: Literal["text"]
    text: str
    cache_control: Raw | UnsetType = UNSET
    citations: Nothing | None = None


class ThinkingBlock(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="thinking"):
    """The model's reasoning before an earlier answer."""

    thinking: str
    signature: str | None = None


class ToolUseBlock(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="tool_use"):
    """A call that the assistant made."""

    id: str
    name: ToolName
    input: dict[str, Any]
    cache_control: Raw | UnsetType = UNSET
    caller: Raw | UnsetType = UNSET
    toolset_name: None = None


class ToolResultBlock(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="tool_result"):
    """The result of a tool."""

    tool_use_id: str
    content: str | list[Text] | None = None
    is_error: bool | None = None
    cache_control: Raw | UnsetType = UNSET
    toolset_name: None = None


Block = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock
_BLOCKS: dict[str, tuple[type[Struct], ...]] = {
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, ToolUseBlock),
    "system": (TextBlock,),
}
BLOCK_TYPES = {role: tuple(str(block.__struct_config__.tag) for block in blocks) for role, blocks in _BLOCKS.items()}
"""by role, of the blocks that its messages may have"""


class AnthropicMessage(Struct, forbid_unknown_fields=True, frozen=True):
    """One message. Calls and thoughts are the assistant's, results of tools the user's."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    def __post_init__(self) -> None:
        theirs = _BLOCKS[self.role]
        if isinstance(self.content, list) and not all(isinstance(block, theirs) for block in self.content):
            raise ValueError(f"content has blocks that messages of {self.role} do not have")


class AnthropicTool(Struct, forbid_unknown_fields=True, frozen=True):
    """A tool that a model may call. `input_schema`: a JSON Schema."""

    name: ToolName
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    cache_control: Raw | UnsetType = UNSET
    allowed_callers: Annotated[list[Literal["direct"]], Meta(max_length=1)] | None = None
    defer_loading: Literal[False] | None = None
    input_examples: Nothing | None = None


class ToolChoice(Struct, forbid_unknown_fields=True, frozen=True):
    """Which tools may be called. `name`: of the one that must be."""

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None

    def __post_init__(self) -> None:
        if (self.name is None) == (self.type == "tool"):
            raise ValueError("name goes with type tool, and with no other")
