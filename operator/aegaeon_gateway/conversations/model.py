"""The record of a response that is kept, its limits, and the interface of stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct


class Kept(Struct, frozen=True):
    """A response as its client got it, and the conversation up to its end: items of input and output. Both JSON.

    `beat`: of one that is generated in the background, when its gateway last showed that it lives (unix seconds).
    """

    response: bytes
    conversation: bytes
    beat: float = 0.0

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.response) + len(self.conversation)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Beyond them a tenant's oldest go. `seconds` that one is kept; `count` and `nbytes` of each tenant."""

    seconds: float
    count: int
    nbytes: int


class Conversations(Protocol):
    """Responses by tenant and id. No tenant sees, or evicts, those of another."""

    async def put(self, tenant: str, id_: str, kept: Kept) -> bool:
        """Keep a response; False where it is not kept: it is too large, or the store is unavailable."""
        ...

    async def replace(self, tenant: str, id_: str, kept: Kept) -> bool:
        """Put it in the place of one that is generated in the background; False where that is over, deleted or expired,
        or this one is too large. Raises UnavailableError."""
        ...

    async def get(self, tenant: str, id_: str) -> Kept | None:
        """None for one that is not kept. Raises UnavailableError."""
        ...

    async def delete(self, tenant: str, id_: str) -> bool:
        """Delete a response; False when there is none. Raises UnavailableError."""
        ...

    async def close(self) -> None:
        """Give up connections."""
        ...
