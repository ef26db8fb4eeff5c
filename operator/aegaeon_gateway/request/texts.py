"""Bodies of POST /tokenize and POST /detokenize, as vLLM's server takes them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from aegaeon_gateway.request.messages import Message, Tool
from aegaeon_gateway.request.parameters import Known, refused

TokenId = Annotated[int, Meta(ge=0, lt=2**32)]


class TokenizeRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A text, or a chat as its template renders it: one of `prompt` and `messages`."""

    model: str
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Tool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Token ids."""

    model: str
    tokens: list[TokenId]


TOKENIZE = Known(refused("chat_template", "media_io_kwargs", "mm_processor_kwargs"), {})
