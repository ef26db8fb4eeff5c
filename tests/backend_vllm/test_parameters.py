"""Every field of a request of vLLM's server is known: it works, has no effect, or is refused by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from aegaeon_gateway.request.anthropic_schema import CountRequest, MessagesRequest
from aegaeon_gateway.request.parameters import Known
from aegaeon_gateway.request.parse import KNOWN
from aegaeon_gateway.request.pooled import EmbeddingRequest, RerankRequest, ScoreRequest
from aegaeon_gateway.request.responses_schema import ResponsesRequest
from aegaeon_gateway.request.schema import ChatRequest, CompletionRequest
from aegaeon_gateway.request.texts import DetokenizeRequest, TokenizeRequest


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("openai.chat_completion.protocol:ChatCompletionRequest", ChatRequest),
        ("openai.completion.protocol:CompletionRequest", CompletionRequest),
        ("openai.responses.protocol:ResponsesRequest", ResponsesRequest),
        ("anthropic.protocol:AnthropicMessagesRequest", MessagesRequest),
        ("anthropic.protocol:AnthropicCountTokensRequest", CountRequest),
        ("pooling.embed.protocol:EmbeddingCompletionRequest", EmbeddingRequest),
        ("pooling.embed.protocol:EmbeddingChatRequest", EmbeddingRequest),
        ("pooling.scoring.protocol:RerankRequest", RerankRequest),
        ("pooling.scoring.protocol:ScoreQueriesDocumentsRequest", ScoreRequest),
        ("pooling.scoring.protocol:ScoreQueriesItemsRequest", ScoreRequest),
        ("pooling.scoring.protocol:ScoreDataRequest", ScoreRequest),
        ("pooling.scoring.protocol:ScoreTextRequest", ScoreRequest),
        ("serve.tokenize.protocol:TokenizeCompletionRequest", TokenizeRequest),
        ("serve.tokenize.protocol:TokenizeChatRequest", TokenizeRequest),
        ("serve.tokenize.protocol:DetokenizeRequest", DetokenizeRequest),
    ],
)
def test_every_field_of_vllms_request_is_known(theirs: str, ours: Any) -> None:
    module, _, name = theirs.partition(":")
    fields = getattr(import_module(f"vllm.entrypoints.{module}"), name).model_fields  # with warnings of its own
    names = {field.alias or name for name, field in fields.items()}
    beside = KNOWN.get(ours, Known({}, {}))
    known = {*ours.__struct_encode_fields__, *beside.refused, *beside.no_effect}
    assert "model" in names
    assert sorted(names - known) == []
