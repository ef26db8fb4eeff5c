"""The answers of a batch while it runs: segments of lines in the store, of which each line of the input counts once.

A segment is written whole and never again. One gateway at a time works on a batch, under a term; should a former one
write late, the same line is in two segments, and the one in the first of them, by term and number, is the answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec
from msgspec import Raw, Struct

from aegaeon_gateway.batches.store import Store


class Answered(Struct, frozen=True):
    """An answer: to which line of the input, whether it is one of the output file, and its line there."""

    number: int
    ok: bool
    line: Raw


class Answers:
    """Owner of the segments of one batch below a prefix, in a term of this gateway."""

    def __init__(self, store: Store, prefix: str, term: int) -> None:
        self._store = store
        self._prefix = prefix
        self._term = term
        self._segments = 0
        self._fresh: list[Answered] = []
        self._done: dict[int, bool] = {}

    async def load(self) -> None:
        """Read which lines are answered already."""
        async for answer in self._distinct(await self.snapshot()):
            self._done[answer.number] = answer.ok

    @property
    def completed(self) -> int:
        return sum(self._done.values())

    @property
    def failed(self) -> int:
        return len(self._done) - self.completed

    def has(self, number: int) -> bool:
        """True when this line of the input is answered."""
        return number in self._done

    def add(self, number: int, ok: bool, line: bytes) -> None:
        """In memory until `flush`."""
        self._fresh.append(Answered(number, ok, Raw(line)))
        self._done[number] = ok

    async def flush(self) -> bool:
        """Write what was added; False when that is nothing. What cannot be written is kept for the next time."""
        fresh, self._fresh = self._fresh, []
        if not fresh:
            return False
        key = f"{self._prefix}/{self._term:08d}-{self._segments:08d}"
        self._segments += 1  # also where this fails: it may be written late, and must not be in the place of the next
        try:
            await self._store.put(key, b"\n".join(map(msgspec.json.encode, fresh)))
        except BaseException:
            self._fresh = fresh + self._fresh
            raise
        return True

    async def snapshot(self) -> Sequence[str]:
        """The segments that are there now."""
        return [entry.key for entry in await self._store.entries(self._prefix)]

    async def lines(self, snapshot: Sequence[str], ok: bool) -> AsyncIterator[bytes]:
        """Yield the lines of the output file, or of the error file, with their ends."""
        async for answer in self._distinct(snapshot):
            if answer.ok == ok:
                yield bytes(answer.line) + b"\n"

    async def _distinct(self, snapshot: Sequence[str]) -> AsyncIterator[Answered]:
        seen: set[int] = set()
        for key in snapshot:
            data = await self._store.get(key)
            for text in (data or b"").splitlines():
                answer = msgspec.json.decode(text, type=Answered)
                if answer.number not in seen:
                    seen.add(answer.number)
                    yield answer
