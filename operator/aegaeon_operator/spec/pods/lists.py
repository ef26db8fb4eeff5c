"""Lists whose items have a unique key: the API server merges them by it and refuses a duplicate; so does this check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import AfterValidator
from pydantic.alias_generators import to_snake


def unique(key: str) -> AfterValidator:
    """Return the check that belongs to `list_map(key)`, for `aegaeon up`. `key`: as written in manifests."""
    return AfterValidator(_check(key))


def _check(key: str) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    def check(items: tuple[Any, ...]) -> tuple[Any, ...]:
        keys = [getattr(item, to_snake(key)) for item in items]
        duplicate = next((value for value in keys if keys.count(value) > 1), None)
        if duplicate is not None:
            raise ValueError(f"duplicate {key} '{duplicate}'; rename or remove one")
        return items

    return check
