"""Items of a kept conversation as GET /v1/responses/{id}/input_items shows them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import orjson

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.responses_items import Item

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


def shown(items: Sequence[Item], response: str) -> list[dict[str, Any]]:
    """Each with an id; those that came without one get one of the response's and their place."""
    return [_shown(item, f"{response}/{place}") for place, item in enumerate(items)]


def page(
    data: list[dict[str, Any]], limit: int, after: str, *, newest_first: bool
) -> tuple[list[dict[str, Any]], bool]:
    """The items of a page, and whether there are more behind it. Raises InvalidRequestError."""
    ordered = data[::-1] if newest_first else data
    if after:
        place = next((number for number, item in enumerate(ordered, 1) if item["id"] == after), None)
        if place is None:
            raise InvalidRequestError(f"after: no item has id {after[:128]!r}", param="after", code="invalid_value")
        ordered = ordered[place:]
    return ordered[:limit], len(ordered) > limit


def _shown(item: Item, place: str) -> dict[str, Any]:
    kind = item.type or "message"
    id_ = item.id or f"{_PREFIXES[kind]}_{blake2b(place.encode(), digest_size=16).hexdigest()}"
    made = {**_plain(item), "id": id_, "type": kind, "status": item.status or "completed"}
    match kind:
        case "message" if isinstance(item.content, str):
            made["content"] = [_part(item.role, item.content)]
        case "reasoning":
            made.setdefault("summary", [])
    return made


def _plain(item: Item) -> dict[str, Any]:
    """As it came: some of its fields were never parsed."""
    plain: dict[str, Any] = orjson.loads(msgspec.json.encode(item))
    return plain


def _part(role: str | None, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}
