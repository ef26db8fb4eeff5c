"""Requests that make steps fail: each ends alone, with a reason, and its batch is unaffected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import NAN_TOKEN, VOCAB_SIZE
from sidecar.late import LateBackend
from sidecar.rig import Link, Rig, config, inside, ready, seq

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.engine.engine import Engine

PROMPT = [5, 17, 23, 42, 8, 99, 140, 7, 61, 12, 33]
INNOCENT = ("a", "b", "c", "d", "e")
TOKENS = 12
MARK = 666
"""The seed by which a failing backend knows whom it cannot compute."""
BACKENDS = pytest.mark.parametrize("late", [False, True], ids=["host", "ahead"])


def failing(base: type[TorchBackend], at: int, prefill: bool) -> TorchBackend:
    class Failing(base):  # type: ignore[misc, valid-type]  # one class for each way of launching
        """Raises for whatever batch holds a marked sequence, from its output token `at` on."""

        def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
            samplers = [part.sampler for part in inputs if part.sampler is not None]
            marked = [s for s in samplers if s.params.seed == MARK and s.generated >= at]
            if marked and (prefill or any(s.generated for s in marked)):
                raise RuntimeError("a kernel was asserted")
            return super().launch(model, inputs, after)

    return Failing()


@asynccontextmanager
async def resident(
    scheduler: Rig, directory: Path, backend: TorchBackend, **changes: Any
) -> AsyncIterator[tuple[Engine, Link]]:
    scheduler.links.clear()
    async with inside(config(scheduler.folder, **changes), backend) as engine:
        link = await ready(scheduler, directory)
        yield engine, link
        await link.done(link.send(pb.Unload(model="m")))
        engine.check()
        assert engine.state.kv.device.slabs_free == engine.state.kv.device.pool.total


def sampling(**fields: Any) -> mpb.Sampling:
    return mpb.Sampling(**({"top_p": 1, "repetition_penalty": 1} | fields))


def turn(link: Link, names: Sequence[str], steps: int = 2 * TOKENS) -> int:
    parts = [pb.PrefillPart(seq=seq(name), tokens=99) for name in names]
    return link.send(pb.Turn(model="m", prefill=parts, decode=[seq(name) for name in names], steps=steps, slabs=24))


def prompt_of(name: str) -> list[int]:
    return [ord(name[0]), *PROMPT]


def ends(link: Link, command: int) -> dict[str, pb.SeqProgress]:
    """Of those that ended with an error: what was reported of them."""
    failed = [p for step in link.steps[command] for p in step.progress]
    return {p.seq.request: p for p in failed if p.finish == mpb.FINISH_REASON_ERROR}


async def expected(scheduler: Rig, link: Link) -> dict[str, list[int]]:
    """What the innocent get when they are alone."""
    for name in INNOCENT:
        link.send(scheduler.open(name.upper(), "m", prompt_of(name), max_tokens=TOKENS))
        await link.done(turn(link, [name.upper()]))
    return {name: await scheduler.received_tokens(name.upper(), TOKENS) for name in INNOCENT}


async def check_innocent(scheduler: Rig, link: Link, poison: Sequence[pb.Open], alone: dict[str, list[int]]) -> int:
    """A turn of the poison between the innocent; nothing of it shows in what those get."""
    names = [*INNOCENT[:2], *(open_.seq.request for open_ in poison), *INNOCENT[2:]]
    for open_ in poison:
        link.send(open_)
    for name in INNOCENT:
        link.send(scheduler.open(name, "m", prompt_of(name), max_tokens=TOKENS))
    command = turn(link, names)
    await link.done(command)
    assert {name: await scheduler.received_tokens(name, TOKENS) for name in INNOCENT} == alone
    return command


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("temperature", {"temperature": float("nan")}),
        ("temperature", {"temperature": -1}),
        ("temperature", {"temperature": float("inf")}),
        ("top_p", {"top_p": 0}),
        ("top_p", {"top_p": float("nan")}),
        ("top_k", {"top_k": 2**32 - 1}),
        ("min_p", {"min_p": 1.5}),
        ("presence_penalty", {"presence_penalty": 1e30}),
        ("frequency_penalty", {"frequency_penalty": float("-inf")}),
        ("repetition_penalty", {"repetition_penalty": 1e-40}),
        ("repetition_penalty", {"repetition_penalty": 0}),
        ("logit_bias", {"logit_bias": {5: float("inf")}}),
        ("logit_bias", {"logit_bias": dict.fromkeys(range(1025), 1.0)}),
        ("logprobs", {"logprobs": 2**31}),
        ("prompt", {"prompt": [5, VOCAB_SIZE]}),
        ("prompt", {"prompt": []}),
        ("prompt", {"prefix": [2**32 - 1]}),
        ("stop_token_ids", {"stop_ids": range(1025)}),
    ],
)
async def test_invalid_parameters_are_refused_by_name_even_if_a_gateway_accepted_them(
    scheduler: Rig, param: str, fields: dict[str, Any]
) -> None:
    known = {name: fields.pop(name) for name in ("prompt", "prefix", "stop_ids") if name in fields}
    asked = {"prompt": PROMPT, "sampling": sampling(**fields)} | known
    async with resident(scheduler, scheduler.models["qwen2"], TorchBackend()) as (engine, link):
        refused = await link.refused(link.send(scheduler.open("poison", "m", **asked)))
        assert refused.kind == pb.FAILURE_KIND_INVALID
        assert refused.reason.startswith(f"{param}: ")
        assert not len(engine.state.kv.sequences)


@BACKENDS
async def test_rows_that_are_not_finite_end_their_own_sequence_alone_at_prefill_and_decode(
    scheduler: Rig, nan_model: Path, late: bool
) -> None:
    backend = LateBackend() if late else TorchBackend()
    async with resident(scheduler, nan_model, backend) as (_, link):
        alone = await expected(scheduler, link)
        all_stops = {"max_tokens": TOKENS, "stop_ids": range(VOCAB_SIZE)}
        masked = scheduler.open("masked", "m", PROMPT, **all_stops)
        masked.limits.min_tokens = 3
        poison = [
            scheduler.open("prompt", "m", [5, NAN_TOKEN, 7], max_tokens=TOKENS),
            scheduler.open("drawn", "m", [NAN_TOKEN], sampling=sampling(temperature=1), max_tokens=TOKENS),
            scheduler.open("failed", "m", [NAN_TOKEN, 5], sampling=sampling(logprobs=3), max_tokens=TOKENS),
            scheduler.open("decode", "m", [9, 8, 7], max_tokens=TOKENS, sampling=sampling(logit_bias={NAN_TOKEN: 100})),
            masked,
        ]
        for _ in range(2):  # the second time in blocks that hold what the first one left there
            failed = ends(link, await check_innocent(scheduler, link, poison, alone))
            assert set(failed) == {"prompt", "drawn", "failed", "decode", "masked"}
            assert failed.pop("masked").failure == pb.FAILURE_KIND_INVALID
            assert {end.failure for end in failed.values()} == {pb.FAILURE_KIND_NOT_FINITE}
            assert all("not finite" in end.reason for end in failed.values())
            assert failed["decode"].output_tokens == 1
            for name in (*INNOCENT, *(open_.seq.request for open_ in poison)):
                del scheduler.tokens[name, 0]


@BACKENDS
@pytest.mark.parametrize("prefill", [False, True])
async def test_a_step_that_raises_is_bisected_until_only_the_sequence_at_fault_ends(
    scheduler: Rig, late: bool, prefill: bool
) -> None:
    backend = failing(LateBackend if late else TorchBackend, at=0 if prefill else 3, prefill=prefill)
    async with resident(scheduler, scheduler.models["qwen2"], backend, max_batch=16) as (_, link):
        alone = await expected(scheduler, link)
        marked = [
            scheduler.open(name, "m", PROMPT, max_tokens=TOKENS, sampling=sampling(seed=MARK)) for name in ("p", "q")
        ]
        failed = ends(link, await check_innocent(scheduler, link, marked, alone))
        assert {name: end.failure for name, end in failed.items()} == dict.fromkeys("pq", pb.FAILURE_KIND_ENGINE)
        assert all("a kernel was asserted" in end.reason for end in failed.values())
        made = {end.output_tokens for end in failed.values()}
        assert made == {0} if prefill else made <= {3, 4}  # a late device's sampler is one token behind


async def test_every_subset_of_a_batch_may_raise_and_the_rest_continues(scheduler: Rig) -> None:
    backend = failing(TorchBackend, at=1, prefill=False)
    async with resident(scheduler, scheduler.models["qwen2"], backend, max_batch=16) as (_, link):
        names = [f"{place}{name}" for place, name in enumerate("uvwxy")]
        for chosen in range(32):
            for place, name in enumerate(names):
                seed = MARK if chosen >> place & 1 else 0
                asked = sampling(seed=seed)
                link.send(scheduler.open(f"{name}{chosen}", "m", PROMPT, max_tokens=4, sampling=asked))
            command = turn(link, [f"{name}{chosen}" for name in names])
            await link.done(command)
            marked = {f"{name}{chosen}" for place, name in enumerate(names) if chosen >> place & 1}
            assert set(ends(link, command)) == marked
            for name in {f"{name}{chosen}" for name in names} - marked:
                assert len(await scheduler.received_tokens(name, 4)) == 4
