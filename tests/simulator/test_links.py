"""Copies: one after the other on a device, shared where a node's memory is the limit."""

from __future__ import annotations

import pytest

from aegaeon_simulator.clock import Clock
from aegaeon_simulator.engine.links import Link, Node


def _ends(copies: list[tuple[Link, float]], clock: Clock) -> list[float]:
    ends = [0.0] * len(copies)
    for i, (link, nbytes) in enumerate(copies):

        def done(i: int = i) -> None:
            ends[i] = clock.now

        link.copy(nbytes, 8.0, done)
    while clock.step():
        pass
    return ends


def test_a_link_copies_one_thing_after_the_other() -> None:
    clock = Clock()
    link = Link(clock, serial=True, node=None)
    assert _ends([(link, 8.0), (link, 16.0)], clock) == pytest.approx([1.0, 3.0])


def test_lanes_without_a_common_link_copy_side_by_side() -> None:
    clock = Clock()
    link = Link(clock, serial=False, node=None)
    assert _ends([(link, 8.0), (link, 16.0)], clock) == pytest.approx([1.0, 2.0])


def test_a_node_shares_its_rate_work_conservingly() -> None:
    clock = Clock()
    node = Node(clock, 10.0)
    links = [Link(clock, serial=True, node=node) for _ in range(2)]
    # five each until the first 10 bytes are over at 2 s; then 8, the most that a link takes, for the 16 left
    assert _ends([(links[0], 10.0), (links[1], 26.0)], clock) == pytest.approx([2.0, 4.0])
