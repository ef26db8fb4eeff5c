"""Ids of calls, the same in every API: a model's template gets them back, and some are particular about them."""

from __future__ import annotations

from hashlib import blake2b

from aegaeon_gateway.dialects.families import CALL_ID_CHARACTERS
from aegaeon_gateway.generation.request import Request


def call_id(request: Request, place: str) -> str:
    """The id of the call at a place of the answer: stable, and unique to it."""
    digest = blake2b(f"{request.id}/{place}".encode(), digest_size=12).hexdigest()
    short = CALL_ID_CHARACTERS.get(request.options.calls)
    return digest[:short] if short else f"call_{digest}"
