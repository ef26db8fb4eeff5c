"""Who is next at the workers, whatever is asked in whatever order."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_gateway.errors import QueueFullError
from aegaeon_gateway.workers.fair import Bounds, FairQueue, Share

NAMES = st.sampled_from("abc")
STEPS = st.lists(st.tuples(st.sampled_from(("put", "next", "end", "discard")), NAMES, NAMES), max_size=80)


def test_owners_are_served_round_robin() -> None:
    queue: FairQueue[str] = FairQueue(Bounds(running=9, waiting=99, waiting_each=99))
    for owner in "aaaabc":
        queue.put(Share(owner, f"model-{owner}"), owner)
    order = [found[1] for _ in range(6) if (found := queue.next())]
    assert "".join(order) == "abcaaa"


def test_no_owner_and_no_model_takes_all_workers() -> None:
    queue: FairQueue[str] = FairQueue(Bounds(running=1, waiting=99, waiting_each=99))
    for share in (Share("a", "m"), Share("a", "other"), Share("b", "m"), Share("c", "n")):
        queue.put(share, share.owner)
    first, second = queue.next(), queue.next()
    assert first is not None
    assert second is not None
    assert (first[1], second[1]) == ("a", "c")
    assert queue.next() is None
    queue.ended(first[0])
    third = queue.next()
    assert third is not None


def test_queues_are_bounded_by_owner_and_in_total() -> None:
    queue: FairQueue[int] = FairQueue(Bounds(running=1, waiting=3, waiting_each=2))
    for owner in "aab":
        queue.put(Share(owner, "m"), 0)
    for owner in "ac":
        with pytest.raises(QueueFullError):
            queue.put(Share(owner, "m"), 0)


@given(STEPS)
def test_counts_and_bounds_hold_after_any_program(steps: list[tuple[str, str, str]]) -> None:
    queue: FairQueue[int] = FairQueue(Bounds(running=2, waiting=9, waiting_each=5))
    running: list[Share] = []
    waiting: list[tuple[Share, int]] = []
    for number, (step, owner, model) in enumerate(steps):
        share = Share(owner, model)
        if step == "put" and len(waiting) < 9 and sum(one.owner == owner for one, _ in waiting) < 5:
            queue.put(share, number)
            waiting.append((share, number))
        elif step == "next" and (found := queue.next()) is not None:
            waiting.remove(found)
            running.append(found[0])
        elif step == "end" and running:
            queue.ended(running.pop())
        elif step == "discard" and waiting:
            assert queue.discard(*waiting.pop(0))
        queue.check()
        assert len(queue) == len(waiting)
        for names in ([one.owner for one in running], [one.model for one in running]):
            assert max(Counter(names).values(), default=0) <= 2
    while (found := queue.next()) is not None:
        queue.ended(found[0])
        waiting.remove(found)
    assert not waiting or running, "what waits without a reason"


async def test_a_burst_of_small_requests_of_one_client_is_served(pool: Any) -> None:
    """Of 400 at once, as agents and load generators send."""
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 1}
    pool.peer.say = lambda submit, choice: [pool.tokenizer.token_to_id("a")]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one() -> int:
            async with http.post(f"{pool.url}/v1/completions", json=body) as response:
                return response.status

        assert set(await asyncio.gather(*(one() for _ in range(400)))) == {200}
