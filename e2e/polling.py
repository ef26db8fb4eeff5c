"""Waiting for what a cluster comes to: nothing announces it to a client, so it is asked again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll(
    what: str, read: Callable[[], T], within_s: float, seen: Callable[[], str] = lambda: "", every_s: float = 0.2
) -> T:
    """What `read` gives as soon as it is true. AssertionError with `what`, and what `seen` then says about it."""
    deadline = time.monotonic() + within_s
    while not (found := read()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{seen()}"
        time.sleep(every_s)  # nothing to wait on: what is polled is a client's view
    return found
