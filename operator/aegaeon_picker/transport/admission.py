"""Which new connections are taken: so many together, so many of each address, and so many a second of each."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_picker.transport.limits import FAULT_TOKENS, Bucket, Limits, Reason


@dataclass(slots=True)
class _Address:
    bucket: Bucket
    open: int = 0


class Admission:
    """The connections of a port, by address."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._addresses: dict[str, _Address] = {}
        self.open = 0

    def enter(self, address: str, now: float) -> Reason | None:
        """None: taken, until `leave`. Else why not."""
        known = self._addresses.setdefault(address, _Address(Bucket(self._limits.connection_rate, now)))
        if self.open >= self._limits.connections or known.open >= self._limits.connections_per_address:
            return Reason.CONNECTIONS
        if not known.bucket.take(now):
            return Reason.CONNECTION_RATE
        known.open += 1
        self.open += 1
        return None

    def leave(self, address: str, faulty: bool, now: float) -> None:
        """A connection has ended, by its own fault or not."""
        known = self._addresses[address]
        known.open -= 1
        self.open -= 1
        if faulty:
            known.bucket.take(now, FAULT_TOKENS)

    def forget(self, now: float) -> None:
        """Addresses of which nothing is open and nothing is held against."""
        for address in [each for each, known in self._addresses.items() if not known.open and known.bucket.full(now)]:
            del self._addresses[address]
