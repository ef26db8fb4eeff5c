"""The input of a batch: read in blocks, so that no connection to the store is held for as long as a batch runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, NamedTuple

import msgspec
from msgspec import Raw, Struct

from aegaeon_gateway.batches.records import Fault
from aegaeon_gateway.errors import HttpError

ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
}
"""that batches may ask, and what the gateway calls them"""
_BLOCK_BYTES = 1 << 20
_MOST_FAULTS = 20  # that are listed of one file

Block = Callable[[int, int], Awaitable[bytes | None]]
"""so many bytes of the input from an offset on; None: it was deleted"""


class Numbered(NamedTuple):
    """A line of the input; the first has number 0. Empty lines have none."""

    number: int
    text: bytes


class Line(Struct, forbid_unknown_fields=True):
    """One request of an input file."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: Raw


class InputGoneError(HttpError):
    """The input file was deleted while its batch ran."""

    def __init__(self) -> None:
        super().__init__("The input file was deleted.", status=400, code="input_file_deleted")


class LineTooLongError(HttpError):
    """A line is longer than any request may be."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"A line has more than {most_bytes} bytes.", status=400, code="line_too_long")


async def lines(block: Block, nbytes: int, most_bytes: int) -> AsyncIterator[Numbered]:
    """All lines of an input of `nbytes`, at most one block and one line in memory.

    Raises InputGoneError, LineTooLongError.
    """
    number, offset, rest = 0, 0, b""
    while offset < nbytes:
        data = await block(offset, min(_BLOCK_BYTES, nbytes - offset))
        if not data:
            raise InputGoneError
        offset += len(data)
        *complete, rest = (rest + data).split(b"\n")
        if len(rest) > most_bytes:
            raise LineTooLongError(most_bytes)
        for text in complete if offset < nbytes else (*complete, rest):
            if text.strip():
                yield Numbered(number, text)
                number += 1


def parsed(text: bytes, endpoint: str) -> Line:
    """Raises ValueError that says what is wrong."""
    try:
        line = msgspec.json.decode(text, type=Line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ValueError(f"is no request: {error}") from error
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    if line.url != endpoint:
        raise ValueError(f"has url {line.url!r}, but the batch is for {endpoint!r}")
    if not bytes(line.body).startswith(b"{"):
        raise ValueError("has a body that is no object")
    return line


class Check:
    """Takes the lines of an input before any is asked. `faults`: what is wrong, the first of it."""

    def __init__(self, endpoint: str, most_lines: int) -> None:
        self._endpoint = endpoint
        self._most_lines = most_lines
        self._seen: set[str] = set()
        self.total = 0
        self.faults: list[Fault] = []

    def take(self, line: Numbered) -> bool:
        """False once the rest does not matter."""
        self.total += 1
        if self.total > self._most_lines:
            message = f"The file has more than {self._most_lines} requests; make several batches of it."
            self.faults.append(Fault("too_many_requests", message))
            return False
        try:
            custom_id = parsed(line.text, self._endpoint).custom_id
        except ValueError as error:
            self.faults.append(Fault("invalid_request", f"The line {error}.", line=line.number + 1))
        else:
            if custom_id in self._seen:
                message = f"The custom_id {custom_id!r} is another line's."
                self.faults.append(Fault("duplicate_custom_id", message, "custom_id", line.number + 1))
            self._seen.add(custom_id)
        return len(self.faults) < _MOST_FAULTS

    def end(self) -> None:
        """That was all."""
        if not self.total:
            self.faults.append(Fault("empty_file", "The input file has no requests."))
