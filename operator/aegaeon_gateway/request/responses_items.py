"""Items of the Responses API: what people write, and what clients send back of earlier answers as they dumped it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from aegaeon_gateway.request.messages import ToolName

Json = Raw | UnsetType
PartType = Literal["input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal"]


class Part(Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """A part of a content; other kinds (images, files, audio) are not served."""

    type: PartType
    text: str | None = None
    refusal: str | None = None
    annotations: Json = UNSET
    logprobs: Json = UNSET
    parsed: Json = UNSET
    prompt_cache_breakpoint: Json = UNSET

    def __post_init__(self) -> None:
        if (self.refusal if self.type == "refusal" else self.text) is None:
            raise ValueError(f"{'refusal' if self.type == 'refusal' else 'text'} is missing")

    @property
    def text_or_refusal(self) -> str:
        return self.text or self.refusal or ""


Parts = list[Part]
FIELDS: dict[str, tuple[set[str], set[str]]] = {
    # what each type needs, and what it may have
    "message": ({"role", "content"}, set()),
    "function_call": ({"call_id", "name", "arguments"}, set()),
    "function_call_output": ({"call_id", "output"}, set()),
    "custom_tool_call": ({"call_id", "name", "input"}, set()),
    "custom_tool_call_output": ({"call_id", "output"}, set()),
    "reasoning": (set(), {"summary", "content"}),
}
VALUES = ("role", "content", "call_id", "name", "arguments", "input", "output", "summary")


ItemType = Literal[
    "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"
]


class Item(Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """One item. Without `type` it is a message. What only describes an answer (`id` and below) has no effect."""

    type: ItemType | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Parts | None = None
    call_id: Annotated[str, Meta(max_length=256)] | None = None
    name: ToolName | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | Parts | None = None
    summary: Parts | None = None
    encrypted_content: None = None
    namespace: Annotated[str, Meta(max_length=128)] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    caller: Json = UNSET
    parsed_arguments: Json = UNSET

    def __post_init__(self) -> None:
        kind = self.type or "message"
        needed, allowed = FIELDS[kind]
        present = {name for name in VALUES if getattr(self, name) is not None}
        if missing := sorted(needed - present):
            raise ValueError(f"{missing[0]} is missing in an item of type {kind}")
        if more := sorted(present - needed - allowed):
            raise ValueError(f"{more[0]} is not of an item of type {kind}")
