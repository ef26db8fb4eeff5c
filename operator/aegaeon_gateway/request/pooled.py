"""Bodies of POST /v1/embeddings, /rerank and /score, as OpenAI's and vLLM's servers take them.

Descriptions go into /openapi.json and docs/reference/api.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct

from aegaeon_gateway.request.parameters import Known, Refused, refused
from aegaeon_gateway.request.sampling_fields import Priority

PooledName = Literal["embeddings", "rerank", "score"]
"""names of endpoints"""
MAX_INPUTS = 2048
"""prompts of one HTTP request"""

TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
Text = Annotated[str, Meta(min_length=1)]
Texts = Text | Annotated[list[Text], Meta(min_length=1, max_length=MAX_INPUTS)]
TokenCount = Annotated[int, Meta(ge=0, lt=2**31)]


class PooledRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Fields that all of them take. `padding` and below are refused unless neutral."""

    model: Annotated[str, Meta(description="a name of GET /v1/models")]
    user: Annotated[str | None, Meta(description="no effect: tenants are known by their keys")] = None
    request_id: Annotated[str | None, Meta(description="no effect: send X-Request-Id, which comes back")] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1, lt=2**31)] | None,
        Meta(description="a prompt is cut to so many tokens; -1: to the model's length"),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"] | None, Meta(description="where a prompt is cut; right is the default")
    ] = None
    use_activation: Annotated[
        bool | None, Meta(description="false: neither normalised nor squashed; what the model gives itself")
    ] = None
    priority: Priority = None
    padding: Annotated[Literal["do_not_pad"] | None, Meta(description="prompts are computed as they are")] = None
    cache_salt: Annotated[None, Meta(description="nothing of a prompt is kept")] = None
    mm_processor_kwargs: Annotated[
        Annotated[dict[str, Any], Meta(max_length=0)] | None, Meta(description="input is text")
    ] = None


class EmbeddingRequest(PooledRequest, frozen=True, kw_only=True):
    """POST /v1/embeddings."""

    input: Annotated[
        Text
        | Annotated[
            list[Text | TokenId | Annotated[list[TokenId], Meta(min_length=1)]],
            Meta(min_length=1),
        ],
        Meta(description=f"a text, texts, token ids or lists of token ids; {MAX_INPUTS} prompts at most"),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None, Meta(description="base64: of float32, little-endian")
    ] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, lt=2**31)] | None,
        Meta(description="the first so many of an embedding, for models that were trained so (Matryoshka)"),
    ] = None
    add_special_tokens: Annotated[
        bool | None, Meta(description="what the tokenizer puts around a text; true is the default")
    ] = None
    embed_dtype: Annotated[Literal["float32"] | None, Meta(description="other types are refused")] = None
    endianness: Annotated[Literal["native", "little"] | None, Meta(description="big is refused")] = None

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """Prompts of a request that `parse_pooled` returned: it has checked that all parts of `input` are of one
        type."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [cast("list[int]", self.input)]
        return cast("list[str | list[int]]", self.input)


_OF_CHATS = Refused("texts and token ids are embedded; POST /tokenize renders a chat into token ids")
EMBEDDINGS = Known(
    {
        **dict.fromkeys(
            ("messages", "add_generation_prompt", "chat_template_kwargs", "continue_final_message"), _OF_CHATS
        ),
        **refused("chat_template", "media_io_kwargs"),
    },
    {},
)


class ScoringRequest(PooledRequest, frozen=True, kw_only=True):
    """Fields that both scoring endpoints take."""

    instruction: Annotated[
        Text | None, Meta(description="what makes a document relevant, for models whose prompt has a place for it")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description="variables of a chat template with the roles query and document")
    ] = None
    max_tokens_per_query: Annotated[TokenCount | None, Meta(description="a query is cut to so many; 0 is off")] = None
    max_tokens_per_doc: Annotated[TokenCount | None, Meta(description="a document is cut to so many; 0 is off")] = None


class RerankRequest(ScoringRequest, frozen=True, kw_only=True):
    """POST /rerank and /v1/rerank."""

    query: Annotated[Text, Meta(description="what the documents are scored for")]
    documents: Annotated[Texts, Meta(description=f"texts, {MAX_INPUTS} at most")]
    top_n: Annotated[TokenCount | None, Meta(description="only the best so many come back; 0: all")] = None
    return_documents: Annotated[
        bool | None, Meta(description="false: results have no `document`; vLLM's server does not know it")
    ] = None


class ScoreRequest(ScoringRequest, frozen=True, kw_only=True):
    """POST /score and /v1/score: one of the pairs of names. One text of the first is scored with each of the second,
    or as many with as many."""

    text_1: Annotated[Texts | None, Meta(description="with `text_2`")] = None
    text_2: Texts | None = None
    queries: Annotated[Texts | None, Meta(description="with `documents` or `items`")] = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Annotated[Texts | None, Meta(description="with `data_2`")] = None
    data_2: Texts | None = None

    @property
    def sides(self) -> list[tuple[Texts, Texts]]:
        """Every pair of names of which both are sent."""
        named = [
            (self.text_1, self.text_2),
            (self.queries, self.documents),
            (self.queries, self.items),
            (self.data_1, self.data_2),
        ]
        return [(first, second) for first, second in named if first is not None and second is not None]


def listed(texts: Texts) -> list[str]:
    """One text or several, as a list."""
    return [texts] if isinstance(texts, str) else list(texts)


def pairs_of(request: RerankRequest | ScoreRequest) -> list[tuple[str, str]]:
    """Pairs of query and document that are scored. Raises ValueError, whose message is for clients."""
    if isinstance(request, RerankRequest):
        return [(request.query, document) for document in listed(request.documents)]
    sides = request.sides
    texts = [
        request.text_1,
        request.text_2,
        request.queries,
        request.documents,
        request.items,
        request.data_1,
        request.data_2,
    ]
    if len(sides) != 1 or sum(text is not None for text in texts) != 2:
        raise ValueError(
            "send one pair of text_1 and text_2, queries and documents, queries and items, data_1 and data_2"
        )
    first, second = map(listed, sides[0])
    if len(first) == 1:
        first *= len(second)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} texts cannot be scored with {len(second)}: send one, or as many")
    return list(zip(first, second, strict=True))


NOTHING = Known({}, {})


@dataclass(frozen=True, slots=True)
class PooledBody:
    """The bodies of an endpoint of vectors. `param`: the parameter with the prompts, `prompts` of them at most;
    `known`: what bodies may name beside their fields; `operation` and `summary`: of /openapi.json, where its answer is
    KINDAnswer; `title`: in the table of parameters."""

    kind: type[PooledRequest]
    param: str
    prompts: int
    title: str
    operation: str
    summary: str
    known: Known = NOTHING


# fmt: off
BODIES: dict[PooledName, PooledBody] = {
    "embeddings": PooledBody(
        EmbeddingRequest, "input", MAX_INPUTS, "embeddings", "createEmbedding", "Embed texts.", EMBEDDINGS
    ),
    "rerank": PooledBody(
        RerankRequest, "documents", MAX_INPUTS, "reranking", "rerank", "Documents, the most relevant for a query first."
    ),
    "score": PooledBody(ScoreRequest, "documents", 2 * MAX_INPUTS, "scores", "score", "How relevant documents are."),
}
# fmt: on
