"""The use of a modelled device's seconds, and its changes of model."""

from __future__ import annotations

from dataclasses import dataclass, field

HIT_S = 0.01  # a change of the model that waited no longer than this found its weights there


@dataclass
class DeviceUsage:
    """Seconds of one device, which is `gpus` GPUs.

    `switch_s`: a turn was there, but its weights or KV were not, or the change itself.
    """

    device: str = ""
    gpus: int = 1
    prefill_s: float = 0.0
    decode_s: float = 0.0
    switch_s: float = 0.0
    first_s: float = 0.0  # of models' first decode steps, beside those themselves
    stalls: list[float] = field(default_factory=list)  # of each change of the model, seconds
    prefill_tokens: int = 0  # of prompts, computed
    reused_tokens: int = 0  # of prompts, found in the prefix cache
    disk_loads: int = 0  # loads of weights that were not in host memory
    _blocked_since: float | None = None

    def block(self, now: float) -> None:
        """Note that the next turn is queued and waits for its data."""
        if self._blocked_since is None:
            self._blocked_since = now

    def unblock(self, now: float) -> float:
        """Note that the turn begins; returns the seconds that it waited."""
        since, self._blocked_since = self._blocked_since, None
        waited = 0.0 if since is None else now - since
        self.switch_s += waited
        return waited

    def changed(self, waited_s: float) -> None:
        """Note a change of the model after a wait of `waited_s`."""
        self.stalls.append(waited_s)

    @property
    def hits(self) -> int:
        """Changes of the model whose weights were already resident."""
        return sum(1 for s in self.stalls if s <= HIT_S)
