"""Resources that the decode passes of all models on one device share: their buffers and the number of their graphs.

Passes run one behind another on one stream, in the order of their launches, and what is read later is copied out of the
buffers on that stream (tiles.py): so no pass overwrites what another still needs, whichever models they are of.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aegaeon_sidecar.backends.draws import FOLLOWED
from aegaeon_sidecar.backends.graphs import Graphs
from aegaeon_sidecar.backends.staging import Staging


@dataclass(frozen=True, slots=True)
class Room:
    """The size of the largest pass. `rows`: its sequences; `blocks`: in each one's table."""

    rows: int = 0
    blocks: int = 0
    vocab_size: int = 0

    def __or__(self, other: Room) -> Room:
        """Room for passes of both."""
        rows, blocks = max(self.rows, other.rows), max(self.blocks, other.blocks)
        return Room(rows, blocks, max(self.vocab_size, other.vocab_size))


class Buffers:
    """`before`: int64 [FOLLOWED], tokens of the step before; `chosen`: int64 [rows], those of this one."""

    def __init__(self, room: Room, device: torch.device) -> None:
        self.staging = Staging(room.rows, room.blocks, device)
        self.before = torch.zeros(FOLLOWED, dtype=torch.int64, device=device)
        self.chosen = torch.zeros(room.rows, dtype=torch.int64, device=device)
        self._logits = torch.zeros(room.rows * room.vocab_size, device=device)

    def logits(self, rows: int, vocab_size: int) -> Tensor:
        """float32 [rows, vocab_size]."""
        return self._logits[: rows * vocab_size].view(rows, vocab_size)


class Passes:
    """The passes of one device. Used by the thread that launches. `graphs`: None: passes run eagerly."""

    def __init__(self, device: torch.device, graphs: Graphs | None) -> None:
        self._device, self.graphs = device, graphs
        self._room = Room()
        self.buffers = Buffers(self._room, device)

    def fit(self, room: Room) -> None:
        """Enlarge buffers that have less room; every graph is then captured again at its next replay."""
        larger = self._room | room
        if larger != self._room:
            self.buffers = Buffers(larger, self._device)
            self._room = larger
            if self.graphs is not None:
                self.graphs.clear()
