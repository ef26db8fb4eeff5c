"""Check of a request's header fields (RFC 9113, 8.2 and 8.3), for each stream by itself.

h2's own check ends the connection with all its calls.
"""

from __future__ import annotations

from collections.abc import Iterable

Field = tuple[bytes, bytes]

_FIELD_BYTES = 32  # added to the size of each field (RFC 9113, 6.5.2)
_ONCE = frozenset({b":method", b":scheme", b":path"})
_PSEUDO = _ONCE | {b":authority"}
_OF_HTTP_1 = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_UPPERCASE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_NEVER = frozenset(b"\0\r\n")


def size_of(headers: Iterable[Field]) -> int:
    """Return the size of header fields as SETTINGS_MAX_HEADER_LIST_SIZE counts it."""
    return sum(len(name) + len(value) + _FIELD_BYTES for name, value in headers)


def is_malformed(headers: list[Field]) -> bool:
    """Return whether header fields are not a valid gRPC request."""
    pseudo = [name for name, _ in headers if name[:1] == b":"]
    first = [name for name, _ in headers[: len(pseudo)]]
    values = dict(headers)
    return (
        pseudo != first  # behind other fields
        or len(set(pseudo)) != len(pseudo)
        or not _ONCE <= set(pseudo) <= _PSEUDO
        or values[b":method"] != b"POST"
        or not values.get(b"content-type", b"").startswith(b"application/grpc")
        or any(map(_is_malformed_field, headers))
    )


def _is_malformed_field(field: Field) -> bool:
    name, value = field
    return (
        not name
        or name in _OF_HTTP_1
        or not _UPPERCASE.isdisjoint(name)
        or not _NEVER.isdisjoint(name)
        or not _NEVER.isdisjoint(value)
    )
