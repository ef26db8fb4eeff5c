"""Parsing of Envoy's messages with bounded cost.

Bytes of a body are nearly free to parse, other fields cost up to 0.1 us a byte: four megabytes of empty headers blocked
the event loop for 0.4 s. Envoy sends at most 60 KiB of headers by default.
"""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_picker.transport.calls import parse
from aegaeon_picker.transport.errors import CallError, Status
from aegaeon_proto.envoy.ext_proc_pb2 import HttpBody, ProcessingRequest

MAX_FIELDS_BYTES = 96 << 10  # of all fields except bodies
_SMALL = 32 << 10  # bytes; smaller messages are parsed without this check
_MAX_FIELDS = 64  # of one level; ProcessingRequest has eleven
_BODIES = frozenset(
    ProcessingRequest.DESCRIPTOR.fields_by_name[name].number for name in ("request_body", "response_body")
)
_BODY = HttpBody.DESCRIPTOR.fields_by_name["body"].number
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_request(data: bytes) -> ProcessingRequest:
    """Parse a request. Raises CallError for a malformed or too large message."""
    if len(data) > _SMALL and _bytes_beside_bodies(data) > MAX_FIELDS_BYTES:
        raise CallError(Status.RESOURCE_EXHAUSTED, f"more than {MAX_FIELDS_BYTES} bytes outside the body")
    return parse(ProcessingRequest, data)


def _bytes_beside_bodies(data: bytes) -> int:
    inside = 0
    for number, begin, end in _fields(data, 0, len(data)):
        if number in _BODIES:
            inside += sum(last - first for field, first, last in _fields(data, begin, end) if field == _BODY)
    return len(data) - inside


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, begin of value, end of value) of the fields of a level. Raises CallError."""
    for _ in range(_MAX_FIELDS):
        if at >= stop:
            return
        tag, at = _varint(data, at)
        begin, kind = at, tag & 7
        if kind == _BYTES:
            size, begin = _varint(data, at)
            at = begin + size
        elif kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in {_FIXED32, _FIXED64}:
            at += 4 if kind == _FIXED32 else 8
        else:
            raise CallError(Status.INTERNAL, "malformed ProcessingRequest: unknown wire type")
        if at > stop:
            raise CallError(Status.INTERNAL, "malformed ProcessingRequest: it ends within a field")
        yield tag >> 3, begin, at
    if at < stop:
        raise CallError(Status.RESOURCE_EXHAUSTED, f"more than {_MAX_FIELDS} fields")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (value, offset after it). Raises CallError."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise CallError(Status.INTERNAL, "malformed ProcessingRequest: a number has no end")
