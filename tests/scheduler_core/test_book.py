"""What an instance's book says is free while loads wait for unloads."""

from __future__ import annotations

from aegaeon_scheduler.core.book import Book, Grant
from aegaeon_scheduler.core.domain import CommandId, Memory

UNLOADS = {CommandId(1): 6, CommandId(2): 4}


def book() -> Book:
    """Of 20 slabs: 10 have the weights of two models that are about to be unloaded, a load takes the other 10."""
    found = Book(20, 1 << 20, Memory(10, 0, {}, {}), weights=10)
    found.grant_load(CommandId(3), 10, {})
    return found


def test_what_unloads_give_back_beyond_their_load_is_free_once_they_are_done() -> None:
    """A turn that does not wait for them might run before, and find nothing."""
    one = book()
    assert one.free() == 0
    one.grant_load(CommandId(4), 8, dict(UNLOADS))
    assert one.free() == 0
    one.report(Memory(16, 0, {}, {}))  # the first is done
    assert one.free() == 0
    one.report(Memory(20, 0, {}, {}))
    for unload, slabs in UNLOADS.items():
        one.weights -= slabs
        one.release_grant(Grant(unload))
    assert one.free() == 2


def test_a_load_whose_unloads_give_back_too_little_takes_the_rest_from_what_is_free() -> None:
    one = Book(20, 1 << 20, Memory(10, 0, {}, {}), weights=10)
    one.grant_load(CommandId(4), 12, dict(UNLOADS))
    assert one.free() == 8
