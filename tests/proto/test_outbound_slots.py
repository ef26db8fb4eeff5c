"""Slots: each source has its own, so that one that hangs holds up itself alone."""

from __future__ import annotations

import threading
from functools import partial

from aegaeon_proto.outbound.slots import Slots

PATIENCE_S = 60.0


def test_hanging_sources_block_their_own_requests_alone_in_order() -> None:
    slots, release, done = Slots("test", at_a_time=4), threading.Event(), threading.Event()
    begun: list[int] = []

    def hang(number: int) -> None:
        begun.append(number)
        release.wait(PATIENCE_S)

    for number in range(9):
        slots.submit("slow", partial(hang, number))
    slots.submit("other", done.set)
    assert done.wait(PATIENCE_S)
    assert len(begun) <= 4
    release.set()
    assert slots.stop(PATIENCE_S)
