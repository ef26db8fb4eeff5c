"""Hashes of prompts' beginnings: equal where engines may share them, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b
from itertools import takewhile
from typing import Any

import pytest

from aegaeon_proto.v1 import gateway_pb2
from aegaeon_scheduler.core.domain import GatewayId
from aegaeon_scheduler.core.prefix import MOST_STEPS
from aegaeon_scheduler.service.codec.frontend import submitted
from aegaeon_scheduler.service.prefix import PrefixHashes

HASHES = PrefixHashes(b"key of the process")
TEXT = [7 * i % 5000 for i in range(1000)]


def submit(prompt: list[int] = TEXT, **more: Any) -> gateway_pb2.Submit:
    made = gateway_pb2.Submit(request="r", model="m", prompt=prompt, **more)
    made.choices.add(choice=0, epoch=1)
    return made


def common(first: gateway_pb2.Submit, second: gateway_pb2.Submit, hashes: PrefixHashes = HASHES) -> int:
    """Leading hashes that are equal."""
    pairs = zip(hashes.of(first), hashes.of(second), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_prompts_that_begin_alike_have_equal_hashes_as_far_as_they_do() -> None:
    assert len(HASHES.of(submit())) == 7
    assert common(submit(), submit([*TEXT, 1, 2, 3])) == 7
    assert common(submit(), submit([*TEXT[:500], 1, *TEXT[501:]])) == 3
    assert common(submit(), submit([1, *TEXT[1:]])) == 0
    assert common(submit(), submit(TEXT[:127])) == 0


def test_a_long_prompt_has_few_hashes() -> None:
    long = [*TEXT] * 50
    assert MOST_STEPS // 2 <= len(HASHES.of(submit(long))) <= MOST_STEPS
    assert set(HASHES.of(submit(long))) & set(HASHES.of(submit(long[:30_000])))


@pytest.mark.parametrize(
    "other", [{"salt": b"of another tenant"}, {"adapter_identity": "an adapter"}, {"public_tokens": 5, "salt": b"own"}]
)
def test_another_tenant_or_adapter_has_other_hashes(other: dict[str, Any]) -> None:
    own = submit(salt=b"of this tenant")
    assert common(own, submit(**other)) == 0
    assert common(submit(**other), submit(**other)) == 7


def test_a_public_beginning_is_shared_by_tenants_and_nothing_behind_it() -> None:
    first, second = (submit(salt=salt, public_tokens=300) for salt in (b"first", b"second"))
    assert common(first, second) == 2
    assert common(first, submit(salt=b"first", public_tokens=300)) == 7
    public = [submit(salt=salt, public_tokens=5000) for salt in (b"first", b"second")]
    assert common(*public) == 7


def test_what_is_said_twice_in_a_name_and_an_adapter_is_not_the_same() -> None:
    first, second = submit(adapter_identity="b c"), submit(adapter_identity="c")
    first.model, second.model = "a", "a b"
    assert common(first, second) == 0


def test_another_process_has_other_hashes() -> None:
    assert not set(PrefixHashes().of(submit())) & set(PrefixHashes().of(submit()))


def test_where_engines_reuse_nothing_there_are_none() -> None:
    scored, pooled = submit(), submit(pooling={})
    scored.sampling.prompt_logprobs = 0
    assert HASHES.of(scored) == HASHES.of(pooled) == ()


def test_every_choice_of_a_submission_has_the_chain() -> None:
    request = submit()
    request.choices.add(choice=1, epoch=1)
    assert {event.chain for event in submitted(GatewayId("g"), request, 1.0, (1, 2))} == {(1, 2)}


def cpu_s(compute: Callable[[], object]) -> float:
    """Seconds of a processor, the least of several times."""
    times = []
    for _ in range(20):
        began = time.process_time()
        compute()
        times.append(time.process_time() - began)
    return min(times)


def test_a_long_prompt_costs_the_event_loop_little_more_than_the_hash_of_its_bytes() -> None:
    tokens = 100_000  # a list of them took ten times as long as the hash
    long, content = submit([*TEXT] * (tokens // len(TEXT))), bytes(4 * tokens)
    assert cpu_s(lambda: HASHES.of(long)) < 4 * cpu_s(lambda: blake2b(content).digest())
