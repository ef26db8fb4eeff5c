"""Parts of contents that are no text, as text: a placeholder where a model that reads text cannot read them."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

from aegaeon_gateway.request.receipt import Receipt

Json = dict[str, Any]
_TEXTS = ("text", "refusal", "source", "content")
_KINDS = {"input_image": "image", "image_url": "image", "input_audio": "audio", "input_file": "file"}


def omitted(kind: str) -> str:
    """The text in the place of a part that is left out."""
    return f"[{_KINDS.get(kind, kind).replace('_', ' ')} omitted: this model reads text]"


def texts_of(
    content: Any, path: str, receipt: Receipt, *, newest: bool = False, types: Container[str] = ("text",)
) -> Any:
    """A content whose parts are texts of these `types`. `newest`: what the user has just sent, where a part that cannot
    be read is left for the types to refuse."""
    if content is None:
        return ""
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return content if isinstance(content, str) else json.dumps(content)
    return [made for part in content if (made := _part(part, path, receipt, newest, types)) is not None]


def _part(part: Any, path: str, receipt: Receipt, newest: bool, types: Container[str]) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return part
    kind = str(part.get("type") or "text")
    text = _text(part)
    if text is not None:
        other = {name: value for name, value in part.items() if name not in _TEXTS}
        return {**other, "type": kind if kind in types else "text", "text": text}
    if newest:
        return part
    receipt.ignore(f"{path}[]", kind)
    return {"type": "text", "text": omitted(kind)}


def _text(part: Json) -> str | None:
    """The text of a text, a refusal, or a document that is a text."""
    for name in ("text", "refusal"):
        if isinstance(part.get(name), str):
            return str(part[name])
    source = part.get("source")
    if part.get("type") == "document" and isinstance(source, dict):
        return _document(source)
    content = part.get("content")
    if part.get("type") == "search_result" and isinstance(content, list):
        return "\n".join(text for each in content if isinstance(each, dict) and (text := _text(each)) is not None)
    return None


def _document(source: Json) -> str | None:
    if source.get("type") == "text" and isinstance(source.get("data"), str):
        return str(source["data"])
    content = source.get("content")
    if source.get("type") == "content" and isinstance(content, str):
        return content
    return None


def arguments_of(value: Any) -> str:
    """The arguments of a call, as text."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
