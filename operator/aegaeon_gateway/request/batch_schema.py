"""The body of POST /v1/batches, as OpenAI's. Descriptions go into /openapi.json and docs/reference/api.md."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

SHORTEST_S, LONGEST_S = 3600, 2592000
"""seconds for which a client may let files be kept"""
FileId = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_-]+$")]
_Text = Annotated[str, Meta(max_length=512)]


class Expiry(Struct, forbid_unknown_fields=True, frozen=True):
    """When a file goes, counted from its creation."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=SHORTEST_S, le=LONGEST_S)]


class BatchRequest(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """POST /v1/batches."""

    input_file_id: Annotated[FileId, Meta(description="a file of JSON Lines, uploaded with purpose `batch`")]
    endpoint: Annotated[
        Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"],
        Meta(description="of all its requests"),
    ]
    completion_window: Annotated[Literal["24h"], Meta(description="what is not answered within it has expired")]
    metadata: Annotated[
        Annotated[dict[Annotated[str, Meta(max_length=64)], _Text], Meta(max_length=16)] | None,
        Meta(description="comes back with the batch"),
    ] = None
    output_expires_after: Annotated[Expiry | None, Meta(description="when its files go; left out: as others")] = None
