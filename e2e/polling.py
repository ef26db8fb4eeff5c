"""Waiting for what a cluster comes to: nothing announces it to a client, so it is asked again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll(
    what: str, read: Callable[[], T], within_s: float, seen: Callable[[], str] = lambda: "", every_s: float = 0.2
) -> T:
    """What `read` gives soon after it is true. AssertionError with `what`, and what `seen` then says about it.

    Pauses grow from `every_s` to three times as much: most of what reads is a kubectl, a process each time.
    """
    deadline, pause = time.monotonic() + within_s, every_s
    while not (found := read()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{seen()}"
        time.sleep(pause)  # nothing to wait on: what is polled is a client's view
        pause = min(1.25 * pause, 3 * every_s)
    return found
