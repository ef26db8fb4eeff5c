"""Structured inputs from a fuzzer's bytes: JSON documents with a few places changed, protobuf messages, raw bytes.

Bytes alone hardly ever get past a parser's first check. The first byte of an input says how the rest is read: even, as
it is (so that files of a corpus can be written by hand); odd, as choices from which a document is made.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import atheris
from fuzz.places import places
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError, Message

T = TypeVar("T")
M = TypeVar("M", bound=Message)

# Numbers, texts and containers at which parsers and what is behind them tend to break.
NUMBERS: tuple[int | float, ...] = (
    0, 1, -1, 2, 127, 128, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 10**400,
    0.0, -0.0, 0.5, 1e-40, 1e-320, 1e38, 1e39, 1e300, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", "a", " ", "\0", "\r\n", "\ud800", "\u202e", "é", "🙂", "../..", "/etc/passwd", "a" * 300, "{{", "%s", "true",
    "1e999", "-1", "0x10", "NaN", "__class__", "file:///x", "http://[bad", "\ufeff",
)  # fmt: skip
_DEEP = 60


class Draw:
    """Choices from the bytes of one input. At their end every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self._provider = atheris.FuzzedDataProvider(data)

    def below(self, limit: int) -> int:
        return self._provider.ConsumeIntInRange(0, limit - 1) if limit > 1 else 0

    def one_of(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, of: int) -> bool:
        """One in `of`."""
        return self.below(of) == of - 1

    def bytes(self, most: int) -> bytes:
        return bytes(self._provider.ConsumeBytes(self.below(most + 1)))

    def text(self, most: int = 40) -> str:
        if self.below(2):
            return self.one_of(TEXTS)
        return str(self._provider.ConsumeUnicode(self.below(most + 1)))

    def number(self) -> int | float:
        match self.below(4):
            case 0:
                return self.one_of(NUMBERS)
            case 1:
                return int(self._provider.ConsumeInt(8))
            case 2:
                return float(self._provider.ConsumeFloat())
            case _:
                return self.below(50)

    def value(self, words: Sequence[str], depth: int = 3) -> Any:
        """Any JSON value; keys are mostly `words`."""
        kind = self.below(9 if depth else 6)
        if kind in (6, 7):
            return [self.value(words, depth - 1) for _ in range(self.below(4))]
        if kind == 8:
            return {self.key(words): self.value(words, depth - 1) for _ in range(self.below(4))}
        options: tuple[Callable[[], Any], ...] = (
            lambda: None,
            lambda: bool(self.below(2)),
            self.number,
            self.text,
            lambda: self.one_of(words) if words else "",
            self._odd,
        )
        return options[kind]()

    def key(self, words: Sequence[str]) -> str:
        return self.one_of(words) if words and self.below(4) else self.text(8)

    def _odd(self) -> Any:
        """Deep, or long."""
        if self.below(2):
            return [self.one_of((0, "", None))] * self.below(2000)
        nested: Any = 0
        for _ in range(self.below(_DEEP)):
            nested = [nested]
        return nested


def raw(data: bytes) -> bytes | None:
    """The input as it is, where its first byte says so."""
    return data[1:] if not data or data[0] % 2 == 0 else None


def changed(draw: Draw, documents: Sequence[Any], words: Sequence[str], most: int = 4) -> Any:
    """One of the documents with up to `most` places replaced, added to or removed."""
    document = copy.deepcopy(draw.one_of(documents))
    for _ in range(1 + draw.below(most)):
        path = draw.one_of(list(places(document)))
        if not path:
            if draw.chance(20):
                return draw.value(words)
            if isinstance(document, dict):
                document[draw.key(words)] = draw.value(words)
            continue
        document = _edit(draw, document, path, words)
    return document


def _edit(draw: Draw, document: Any, path: tuple[Any, ...], words: Sequence[str]) -> Any:
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    match draw.below(5):
        case 0:
            del inner[path[-1]]
        case 1 if isinstance(inner[path[-1]], dict):
            inner[path[-1]][draw.key(words)] = draw.value(words)
        case 2 if isinstance(inner[path[-1]], list) and inner[path[-1]]:
            inner[path[-1]] += [draw.one_of(inner[path[-1]])] * draw.below(30)
        case _:
            inner[path[-1]] = draw.value(words)
    return document


def json_bytes(document: Any) -> bytes:
    """As JSON; what has no JSON (lone surrogates) as Python writes it."""
    return json.dumps(document, ensure_ascii=True).encode()


def json_input(data: bytes, documents: Sequence[Any], words: Sequence[str]) -> bytes:
    """The body of a JSON parser's input."""
    body = raw(data)
    return json_bytes(changed(Draw(data[1:]), documents, words)) if body is None else body


def message(draw: Draw, kind: type[M], words: Sequence[str] = (), depth: int = 4) -> M:
    """A message with about half of its fields set, to extremes as often as to ordinary values."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if draw.below(2):
            _set(draw, made, field, words, depth)
    return made


def received(body: bytes | None, draw: Draw, kind: type[M], words: Sequence[str] = (), depth: int = 4) -> M | None:
    """The message that these bytes are, or one made where there are none; None for bytes that protobuf refuses."""
    if body is None:
        return message(draw, kind, words, depth)
    try:
        return kind.FromString(body)
    except DecodeError:
        return None


def _set(draw: Draw, made: Message, field: Field, words: Sequence[str], depth: int) -> None:
    if field.type == Field.TYPE_MESSAGE:
        if depth == 0:
            return
        if field.message_type.GetOptions().map_entry:
            _set_map(draw, made, field, words)
        elif field.is_repeated:
            for _ in range(draw.below(4)):
                _fill(draw, getattr(made, field.name).add(), words, depth - 1)
        else:
            inner = getattr(made, field.name)
            inner.SetInParent()
            _fill(draw, inner, words, depth - 1)
    elif field.is_repeated:
        getattr(made, field.name).extend(_scalar(draw, field, words) for _ in range(draw.below(6)))
    else:
        setattr(made, field.name, _scalar(draw, field, words))


def _fill(draw: Draw, inner: Message, words: Sequence[str], depth: int) -> None:
    for field in inner.DESCRIPTOR.fields:
        if draw.below(3):
            _set(draw, inner, field, words, depth)


def _set_map(draw: Draw, made: Message, field: Field, words: Sequence[str]) -> None:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    if value.type == Field.TYPE_MESSAGE:
        for _ in range(draw.below(3)):
            _fill(draw, getattr(made, field.name)[_scalar(draw, key, words)], words, 1)
        return
    for _ in range(draw.below(4)):
        getattr(made, field.name)[_scalar(draw, key, words)] = _scalar(draw, value, words)


_BITS = {
    Field.TYPE_UINT32: (0, 2**32 - 1), Field.TYPE_UINT64: (0, 2**64 - 1), Field.TYPE_INT32: (-(2**31), 2**31 - 1),
    Field.TYPE_INT64: (-(2**63), 2**63 - 1), Field.TYPE_SINT32: (-(2**31), 2**31 - 1),
    Field.TYPE_SINT64: (-(2**63), 2**63 - 1), Field.TYPE_FIXED32: (0, 2**32 - 1), Field.TYPE_FIXED64: (0, 2**64 - 1),
}  # fmt: skip


def _scalar(draw: Draw, field: Field, words: Sequence[str]) -> Any:
    match field.type:
        case Field.TYPE_STRING:
            text = draw.one_of(words) if words and draw.below(3) else draw.text(12)
            return text.encode("utf-8", "replace").decode()
        case Field.TYPE_BYTES:
            return draw.bytes(200)
        case Field.TYPE_BOOL:
            return bool(draw.below(2))
        case Field.TYPE_ENUM:
            return draw.below(len(field.enum_type.values) + 2)
        case Field.TYPE_FLOAT | Field.TYPE_DOUBLE:
            number = draw.number()
            return number if isinstance(number, float) else float(min(max(number, -(10**300)), 10**300))
        case _:
            low, high = _BITS[field.type]
            number = draw.number()
            return min(max(int(number), low), high) if abs(number) < 1e30 else high
