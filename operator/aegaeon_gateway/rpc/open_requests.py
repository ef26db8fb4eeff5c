"""The table of open generations: the one place that knows which requests the outside world still waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from aegaeon_gateway.generation.generation import Generation


class OpenRequests:
    """Owner of the open generations by request id."""

    def __init__(self) -> None:
        self._open: dict[str, Generation] = {}

    def add(self, generation: Generation) -> None:
        """Raises ValueError when the id is open already."""
        if generation.id in self._open:
            raise ValueError(f"request {generation.id} is open already")
        self._open[generation.id] = generation

    def remove(self, generation: Generation) -> None:
        """Raises KeyError when it is not open."""
        del self._open[generation.id]

    def get(self, request: str) -> Generation | None:
        return self._open.get(request)

    def load(self) -> tuple[int, int]:
        """How many wait for their first token, and how many get tokens."""
        running = sum(generation.started for generation in self._open.values())
        return len(self._open) - running, running

    def load_by_model(self) -> dict[str, tuple[int, int]]:
        """The same for each model that has any; any thread may ask."""
        waiting, running = Counter[str](), Counter[str]()
        for generation in self:
            (running if generation.started else waiting)[generation.request.model] += 1
        return {model: (waiting[model], running[model]) for model in waiting | running}

    def overdue(self, now: float) -> int:
        """Online requests that wait for their first token for more than half of the time that they may."""
        return sum(
            not (generation.started or generation.request.defer_s)
            and now - generation.request.arrived > generation.request.spec.ttft_s / 2
            for generation in self
        )

    def __iter__(self) -> Iterator[Generation]:
        return iter(list(self._open.values()))

    def __contains__(self, generation: Generation) -> bool:
        return self._open.get(generation.id) is generation

    def __len__(self) -> int:
        return len(self._open)
