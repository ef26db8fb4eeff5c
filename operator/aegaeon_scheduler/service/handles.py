"""Handles of KV caches that were swapped out, from the source's report until the sequence moves on or ends.

The core names a handle by the SwapOut that made it; only Adopt on another sidecar needs the handle itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_proto.v1 import engine_pb2
from aegaeon_scheduler.core.domain import CommandId, InstanceId, SeqId


@dataclass(slots=True)
class _Made:
    by: CommandId
    handle: engine_pb2.KvHandle | None = None  # None until the SwapOut is done


class HandleBook:
    """Owner of the handles: at most one for each sequence and instance, the one of the newest SwapOut."""

    def __init__(self) -> None:
        self._made: dict[SeqId, dict[InstanceId, _Made]] = {}
        self._pending: dict[tuple[InstanceId, CommandId], SeqId] = {}

    def expect(self, instance: InstanceId, swap_out: CommandId, seq: SeqId) -> None:
        """A SwapOut was sent: its report will bring the handle."""
        self._made.setdefault(seq, {})[instance] = _Made(swap_out)
        self._pending[instance, swap_out] = seq

    def arrived(self, instance: InstanceId, swap_out: CommandId, handle: engine_pb2.KvHandle) -> None:
        """The report of a SwapOut; ignored when the sequence has ended since."""
        seq = self._pending.pop((instance, swap_out), None)
        if made := self._newest(seq, instance, swap_out):
            made.handle = handle

    def failed(self, instance: InstanceId, swap_out: CommandId) -> None:
        """A command that may have been a SwapOut brought nothing."""
        seq = self._pending.pop((instance, swap_out), None)
        if seq is not None and self._newest(seq, instance, swap_out):
            self.closed(instance, seq)

    def find(self, seq: SeqId, source: InstanceId, swap_out: CommandId) -> engine_pb2.KvHandle | None:
        """The handle that this SwapOut made, if it is still good."""
        made = self._newest(seq, source, swap_out)
        return made.handle if made else None

    def closed(self, instance: InstanceId, seq: SeqId) -> None:
        """The source was commanded to forget the sequence."""
        by_instance = self._made.get(seq)
        if by_instance is not None:
            by_instance.pop(instance, None)
            if not by_instance:
                del self._made[seq]

    def ended(self, seq: SeqId) -> None:
        """The sequence is no more."""
        self._made.pop(seq, None)

    def lost(self, instance: InstanceId) -> None:
        """The instance is gone, and its host tier with it."""
        for seq in [seq for seq, by_instance in self._made.items() if instance in by_instance]:
            self.closed(instance, seq)
        self._pending = {key: seq for key, seq in self._pending.items() if key[0] != instance}

    def _newest(self, seq: SeqId | None, instance: InstanceId, swap_out: CommandId) -> _Made | None:
        made = self._made.get(seq, {}).get(instance) if seq else None
        return made if made is not None and made.by == swap_out else None

    def __len__(self) -> int:
        return sum(len(by_instance) for by_instance in self._made.values()) + len(self._pending)
