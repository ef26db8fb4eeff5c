"""What is known of one stream."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_picker.transport.calls import PREFIX, Call, Headers


@dataclass(slots=True, eq=False)
class Stream:
    """One call's."""

    id: int
    at: float  # of its last message
    since: float | None  # its next message is awaited or incomplete since then; None: nothing is awaited
    call: Call | None = None  # None once it is over; then what the client still sends is dropped
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    held: int = 0  # bytes that were received and not yet given back to the client's window
    counted: int = 0  # bytes of `received` and `unsent` that the budget knows of
    answered: bool = False
    ready: bool = False  # it is among those to be served
    ended: bool = False  # by the client
    end: Headers | None = None  # trailers that go out behind the last message

    def has_message(self, max_bytes: int) -> bool:
        """A whole one, or one that is not taken at all."""
        if len(self.received) < PREFIX:
            return False
        size = int.from_bytes(self.received[1:PREFIX])
        return bool(self.received[0]) or PREFIX + size > max_bytes or len(self.received) >= PREFIX + size
