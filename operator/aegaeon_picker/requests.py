"""Envoy's messages read with a bound on what reading costs.

Bytes of a body cost next to nothing to read, every other field up to 0.1 us a byte: four megabytes of empty headers
held the event loop for 0.4 s. Envoy sends at most 60 KiB of headers unless configured otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_picker.transport.calls import parse
from aegaeon_picker.transport.errors import CallError, Status
from aegaeon_proto.envoy.ext_proc_pb2 import HttpBody, ProcessingRequest

MAX_FIELDS_BYTES = 96 << 10  # of all that is no body
_SMALL = 32 << 10  # bytes that need no look beforehand
_MAX_FIELDS = 64  # of one level; ProcessingRequest has eleven
_BODIES = frozenset(
    ProcessingRequest.DESCRIPTOR.fields_by_name[name].number for name in ("request_body", "response_body")
)
_BODY = HttpBody.DESCRIPTOR.fields_by_name["body"].number
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_request(data: bytes) -> ProcessingRequest:
    """Raises CallError for what is none, or is too large."""
    if len(data) > _SMALL and _bytes_beside_bodies(data) > MAX_FIELDS_BYTES:
        raise CallError(Status.RESOURCE_EXHAUSTED, f"more than {MAX_FIELDS_BYTES} bytes beside the body")
    return parse(ProcessingRequest, data)


def _bytes_beside_bodies(data: bytes) -> int:
    inside = 0
    for number, begin, end in _fields(data, 0, len(data)):
        if number in _BODIES:
            inside += sum(last - first for each, first, last in _fields(data, begin, end) if each == _BODY)
    return len(data) - inside


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(number, begin and end of its value) of the fields of one level. Raises CallError."""
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
            raise CallError(Status.INTERNAL, "the message is no ProcessingRequest")
        if at > stop:
            raise CallError(Status.INTERNAL, "the message is no ProcessingRequest: it ends within a field")
        yield tag >> 3, begin, at
    if at < stop:
        raise CallError(Status.RESOURCE_EXHAUSTED, f"more than {_MAX_FIELDS} fields")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where the next one begins)"""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise CallError(Status.INTERNAL, "the message is no ProcessingRequest: a number has no end")
