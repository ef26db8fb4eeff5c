"""Lists whose items have a key of their own: the API server merges them by it and refuses one given twice, and so do
we."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import AfterValidator
from pydantic.alias_generators import to_snake


def given_once(key: str) -> AfterValidator:
    """The check of a list beside `list_map(key)`, for `aegaeon up`. `key` as it is written."""
    return AfterValidator(_check(key))


def _check(key: str) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    def check(items: tuple[Any, ...]) -> tuple[Any, ...]:
        keys = [getattr(one, to_snake(key)) for one in items]
        twice = next((one for one in keys if keys.count(one) > 1), None)
        if twice is not None:
            raise ValueError(f"{key} '{twice}' is given twice; rename or remove one")
        return items

    return check
