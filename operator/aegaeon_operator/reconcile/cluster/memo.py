"""A cache of results whose inputs rarely change between two passes over the same objects."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Memo:
    """Results by key, each valid while its inputs are equal. A key that a whole pass does not use is forgotten.

    Equality of the same object costs nothing, and a pool's thousands of ModelPools are the same ones in most passes.
    """

    def __init__(self) -> None:
        self._before: dict[Hashable, tuple[object, Any]] = {}
        self._now: dict[Hashable, tuple[object, Any]] = {}

    def start_pass(self) -> None:
        """Begin another pass over all keys."""
        self._before, self._now = self._now, {}

    def of(self, key: Hashable, inputs: object, make: Callable[[], Result]) -> Result:
        """Return the key's result of the pass before if its inputs were equal, else make it."""
        known = self._before.get(key)
        result: Result = known[1] if known and known[0] == inputs else make()
        self._now[key] = (inputs, result)
        return result
