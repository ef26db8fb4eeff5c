"""Every field of a chat or completion of vLLM's server is known: it works, has no effect, or is refused by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from aegaeon_gateway.request.parse import KNOWN
from aegaeon_gateway.request.schema import ChatRequest, CompletionRequest


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("openai.chat_completion.protocol:ChatCompletionRequest", ChatRequest),
        ("openai.completion.protocol:CompletionRequest", CompletionRequest),
    ],
)
def test_every_field_of_vllms_request_is_known(theirs: str, ours: Any) -> None:
    module, _, name = theirs.partition(":")
    fields = getattr(import_module(f"vllm.entrypoints.{module}"), name).model_fields  # with warnings of its own
    names = {field.alias or name for name, field in fields.items()}
    known = {*ours.__struct_encode_fields__, *KNOWN[ours].refused, *KNOWN[ours].no_effect}
    assert len(names) > 10
    assert sorted(names - known) == []
