"""Tokens a second of each model over the last half minute, of its prompts and of what it generates."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from aegaeon_scheduler.core.state import Model


@dataclass(slots=True)
class _Seen:
    """Tokens of a model with their times, and how many it had generated when that was last looked at."""

    output_tokens: int
    tokens: int = 0
    events: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, tokens: int) -> None:
        self.events.append((now, tokens))
        self.tokens += tokens

    def drop_before(self, at: float) -> None:
        while self.events and self.events[0][0] < at:
            self.tokens -= self.events.popleft()[1]


class Rates:
    """Owner of what was seen of each model; models without tokens in the window are forgotten."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: dict[Model, _Seen] = {}

    def count_prompt(self, model: Model, tokens: int, now: float) -> None:
        """A prompt of so many tokens has come."""
        self._of(model).add(now, tokens)

    def _of(self, model: Model) -> _Seen:
        seen = self._seen.get(model)
        if seen is None:
            seen = self._seen[model] = _Seen(model.output_tokens)
        return seen

    def update(self, live: Iterable[Model], now: float) -> None:
        """Count what these have generated since."""
        for model in live:
            seen = self._of(model)
            if model.output_tokens != seen.output_tokens:
                seen.add(now, model.output_tokens - seen.output_tokens)
                seen.output_tokens = model.output_tokens
        for seen in self._seen.values():
            seen.drop_before(now - self._window_s)
        self._seen = {model: seen for model, seen in self._seen.items() if seen.events}

    def growth(self, model: Model) -> float:
        """Bytes of KV a second over TBT, as of the last update and what came since."""
        seen = self._seen.get(model)
        if seen is None or model.footprint is None:
            return 0.0
        token_bytes = model.footprint.kv_block_bytes / model.footprint.kv_block_tokens
        return seen.tokens / self._window_s * token_bytes / max(model.config.slo.tbt_s, 1e-9)
