"""Admission of connections: limits in total, per address, and per address and second."""

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
        """Admit a connection until `leave` (None), or return the reason of its refusal."""
        known = self._addresses.setdefault(address, _Address(Bucket(self._limits.connection_rate, now)))
        if self.open >= self._limits.connections or known.open >= self._limits.connections_per_address:
            return Reason.CONNECTIONS
        if not known.bucket.take(now):
            return Reason.CONNECTION_RATE
        known.open += 1
        self.open += 1
        return None

    def leave(self, address: str, faulty: bool, now: float) -> None:
        """Record the end of a connection; `faulty`: by a fault of the peer."""
        known = self._addresses[address]
        known.open -= 1
        self.open -= 1
        if faulty:
            known.bucket.take(now, FAULT_TOKENS)

    def forget(self, now: float) -> None:
        """Drop addresses without open connections and with a full bucket."""
        for address in [key for key, known in self._addresses.items() if not known.open and known.bucket.full(now)]:
            del self._addresses[address]
