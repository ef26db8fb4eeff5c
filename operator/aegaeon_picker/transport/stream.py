"""The state of a stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_picker.transport.calls import PREFIX, Call, Headers


@dataclass(slots=True, eq=False)
class Stream:
    """The stream of a call."""

    id: int
    at: float  # of its last message
    since: float | None  # time since which its next message is awaited or incomplete; None: no message is awaited
    call: Call | None = None  # None after its end; then further data of the client is dropped
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    held: int = 0  # received bytes that were not returned to the client's window yet
    counted: int = 0  # bytes of `received` and `unsent` that are counted in the budget
    answered: bool = False
    ready: bool = False  # it is in the queue of streams with a message
    ended: bool = False  # by the client
    end: Headers | None = None  # trailers to send after the last message

    def has_message(self, max_bytes: int) -> bool:
        """Return whether there is a complete message, or one that will be refused."""
        if len(self.received) < PREFIX:
            return False
        size = int.from_bytes(self.received[1:PREFIX])
        return bool(self.received[0]) or PREFIX + size > max_bytes or len(self.received) >= PREFIX + size
