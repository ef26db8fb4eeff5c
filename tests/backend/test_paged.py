"""Decodes at one fixed shape, by Triton's interpreter: what a GPU runs, held against what a CPU does."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from backend.test_draws import random_samplers
from conftest import NAN_TOKEN

from aegaeon_operator.spec.engines import PASS_ROWS
from aegaeon_proto.engine.sampling import SamplingParams
from aegaeon_sidecar.backends import StepInput, decodes
from aegaeon_sidecar.backends.choose import choose
from aegaeon_sidecar.backends.decodes import ROWS
from aegaeon_sidecar.backends.draws import numbers, on_device, pick
from aegaeon_sidecar.backends.torch.cache import KvCache
from aegaeon_sidecar.backends.torch.paged import MOST_SPLITS, SPLIT_TOKENS, Paged
from aegaeon_sidecar.domain.errors import BackendError
from aegaeon_sidecar.models.layout import KvShape
from aegaeon_sidecar.sampling import NotFinite, SamplerState

pytestmark = pytest.mark.usefixtures("few_rows")

STEPS = 3


Memory = Callable[[int], torch.Tensor]


def anywhere(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)


def low(nbytes: int) -> torch.Tensor:
    """Memory below 2 GiB, where the heap of Debian's Python lies; it is kept until the process ends."""
    libc, map_32bit = ctypes.CDLL(None), 0x40
    libc.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | map_32bit
    address = libc.mmap(None, ctypes.c_size_t(nbytes), mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0))
    assert 0 < address < 1 << 31
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=torch.uint8)


def paged_state(
    lengths: list[int], heads: int, shape: KvShape, memory: Memory = anywhere
) -> tuple[Paged, torch.Tensor, torch.Tensor]:
    """A cache full of noise but for its tail slots (NaN), block tables for `lengths`, and the new tokens' q, k, v."""
    generator = torch.Generator().manual_seed(0)
    blocks = sum(-(-length // shape.block_tokens) for length in lengths) + 1
    cache = KvCache(shape, memory(blocks * shape.block_bytes))
    cache.flat.fill_(float("nan"))
    order = iter(torch.randperm(blocks, generator=generator).tolist())
    tables = torch.zeros(len(lengths), 48, dtype=torch.int32)
    for row, length in enumerate(lengths):
        for block in range(-(-length // shape.block_tokens)):
            tables[row, block] = next(order)
        for position in range(length - 1):
            at = cache.blocks[tables[row, position // shape.block_tokens]].view(shape.layers, 2, shape.block_tokens, -1)
            at[:, :, position % shape.block_tokens] = torch.randn(
                shape.layers, 2, shape.kv_heads * shape.head_dim, generator=generator
            )
    new = torch.randn(len(lengths), heads + 2 * shape.kv_heads, shape.head_dim, generator=generator)
    return Paged(cache, torch.tensor(lengths, dtype=torch.int32), tables, 48 * 16), new[:, :heads], new[:, heads:]


def expected(paged: Paged, row: int, layer: int, window: int | None, query: torch.Tensor) -> torch.Tensor:
    """Attention by its definition, in float64, after the step has written its keys and values."""
    shape, length = paged.cache.shape, int(paged.lengths[row])
    low = 0 if window is None else max(0, length - window)
    held = paged.cache.blocks[paged.tables[row].long()].view(
        -1, shape.layers, 2, shape.block_tokens, shape.kv_heads, shape.head_dim
    )
    keys, values = (held[:, layer, kind].flatten(0, 1)[low:length].double() for kind in (0, 1))
    group = len(query) // shape.kv_heads
    keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
    weights = torch.einsum("hd,nhd->hn", query.double(), keys).div(shape.head_dim**0.5).softmax(dim=-1)
    return torch.einsum("hn,nhd->hd", weights, values).flatten().float()


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (3, 3, 24)])
@pytest.mark.parametrize(("window", "memory"), [(None, anywhere), (20, low)])
def test_attention_over_scattered_blocks_is_that_of_the_definition(
    heads: int, kv_heads: int, head_dim: int, window: int | None, memory: Memory
) -> None:
    lengths = [1, 0, 16, 33, 300]
    paged, queries, new = paged_state(lengths, heads, KvShape(2, 16, kv_heads, head_dim, "float32"), memory)
    out = paged.attend(1, window, queries, new[:, :kv_heads], new[:, kv_heads:])
    for row, length in enumerate(lengths):
        want = expected(paged, row, 1, window, queries[row]) if length else torch.zeros(heads * head_dim)
        torch.testing.assert_close(out[row], want, rtol=1e-4, atol=1e-5)


def test_a_row_does_not_depend_on_the_rest_of_the_batch() -> None:
    shape = KvShape(1, 16, 2, 16, "float32")
    paged, queries, new = paged_state([40, 290, 7], 4, shape)
    whole = paged.attend(0, None, queries, new[:, :2], new[:, 2:])
    for row in range(3):
        one = Paged(paged.cache, paged.lengths[row : row + 1], paged.tables[row : row + 1], 512)
        alone = one.attend(0, None, queries[row : row + 1], new[row : row + 1, :2], new[row : row + 1, 2:])
        assert torch.equal(alone[0], whole[row])


def test_a_long_context_is_cut_into_so_many_pieces_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pass of any size: what a row adds up in which order is its own length's matter."""
    length = MOST_SPLITS * SPLIT_TOKENS + 1
    shape = KvShape(1, 512, 1, 16, "float32")
    tables = -(-length // shape.block_tokens)
    cache = KvCache(shape, torch.empty(tables * shape.block_bytes, dtype=torch.uint8))
    cache.flat.normal_(generator=torch.Generator().manual_seed(1))
    table = torch.arange(tables, dtype=torch.int32).flip(0)[None]
    new = torch.randn(1, 3, 16, generator=torch.Generator().manual_seed(2))
    shapes: list[tuple[int, ...]] = []
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: shapes.append(size) or empty(*size, **options))
    outs = []
    for context in (length, 131072):
        paged = Paged(cache, torch.tensor([length], dtype=torch.int32), table, context)
        outs.append(paged.attend(0, None, new[:, :1], new[:, 1:2], new[:, 2:]))
    torch.testing.assert_close(outs[0][0], expected(paged, 0, 0, None, new[0, :1]), rtol=1e-4, atol=1e-5)
    assert torch.equal(*outs)
    assert (1, 1, MOST_SPLITS, 16) in shapes
    assert max(math.prod(size) for size in shapes) == MOST_SPLITS * 16


def decoded(
    rig: Callable[..., Any], directory: object, prompt: list[int], samplers: list[SamplerState], *, paged: bool
) -> list[list[int]]:
    """STEPS tokens for each sampler, each step fed with the tokens of the one before."""
    tiny = rig(directory, paged=paged)
    tables = [tiny.table(40) for _ in samplers]
    lengths = [5 + 3 * i for i in range(len(samplers))]
    outputs: list[list[int]] = [[] for _ in samplers]
    for length, table in zip(lengths, tables, strict=True):
        tiny.logits(prompt[: length - 1], 0, table)
    last = [prompt[length - 1] for length in lengths]
    for step in range(STEPS):
        parts = [
            tiny.input([token], length - 1 + step, table, sampler)
            for token, length, table, sampler in zip(last, lengths, tables, samplers, strict=True)
        ]
        last = [sampled.token for sampled in tiny.backend.step("model", parts)]
        for sampler, output, token in zip(samplers, outputs, last, strict=True):
            sampler.accept(token)
            output.append(token)
    return outputs


def test_a_decode_that_outgrows_its_pass_is_gone_on_with_in_one_for_longer_contexts(
    rig: type, tiny_models: dict[str, object], prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 32 tokens to 33; its neighbour, which is short, gives the same bits in both."""
    monkeypatch.setattr(decodes, "LEAST_CONTEXT", 32)
    tiny, usual = (rig(tiny_models["llama"], paged=paged) for paged in (True, False))
    table, short = usual.table(40), usual.table(16)
    for one in (tiny, usual):
        one.logits(prompt[:30], 0, table)
    steps: list[Any] = []
    graphs = Graphs(steps)
    tiny.backend._capture = lambda: graphs
    kept = None
    for position in range(30, 34):
        parts = [tiny.input([prompt[position]], position, table), tiny.input([7], 0, short)]
        there, here = (one.backend.logits("model", parts) for one in (tiny, usual))
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-4)
        steps.append(position)
        kept = there[1] if kept is None else kept
        assert torch.equal(there[1], kept)
    assert steps == ["captured", 30, 31, "captured", 32, 33]


def test_the_operator_knows_how_many_sequences_a_pass_has() -> None:
    assert ROWS[-1] == PASS_ROWS


@pytest.mark.parametrize(("longest", "size"), [(1, 2048), (2048, 2048), (2049, 4096), (70_000, 131_072)])
def test_contexts_are_padded_to_powers_of_two(longest: int, size: int) -> None:
    assert decodes.context_size(longest, 131_072) == size
    assert decodes.context_size(longest, 100_000) == min(size, 100_000)


def test_only_numbers_of_rows_whose_products_agree_bit_by_bit_are_passes_of_a_model(
    rig: type, tiny_models: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    from aegaeon_sidecar.backends.torch.decodes import steady_rows

    monkeypatch.setattr("aegaeon_sidecar.backends.torch.decodes.ROWS", ROWS)
    decoder = rig(tiny_models["llama"]).backend._shells["model"].decoder
    cpu = [torch.device("cpu")]
    with torch.inference_mode():
        assert steady_rows(decoder, cpu) in {ROWS, ROWS[-1:]}
        monkeypatch.setattr(decoder, "forward", lambda given: torch.ones(len(given[0].tokens), 9))
        assert steady_rows(decoder, cpu) == ROWS
        monkeypatch.setattr(decoder, "forward", lambda given: torch.ones(n := len(given[0].tokens), 9) / n)
        assert steady_rows(decoder, cpu) == ROWS[-1:]


class Graphs:
    """Captures nothing: a replay is the pass once more."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        self.seen.append("captured")
        run()
        return run


def some_samplers() -> list[SamplerState]:
    return [
        SamplerState(),
        SamplerState(SamplingParams(temperature=1.0, seed=3)),
        SamplerState(SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=4)),
    ]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_paged_decodes_give_the_tokens_of_gathered_ones(
    rig: type, tiny_models: dict[str, object], prompt: list[int], architecture: str
) -> None:
    directory = tiny_models[architecture]
    usual = decoded(rig, directory, prompt, some_samplers(), paged=False)
    assert decoded(rig, directory, prompt, some_samplers(), paged=True) == usual


def test_paged_decodes_of_two_ranks_do_too(rig: type, tiny_models: dict[str, object], prompt: list[int]) -> None:
    usual = decoded(rig, tiny_models["llama"], prompt, some_samplers(), paged=False)
    assert decoded(partial(rig, ranks=2), tiny_models["llama"], prompt, some_samplers(), paged=True) == usual


def test_asynchronous_steps_give_the_tokens_of_synchronous_ones(
    rig: type, tiny_models: dict[str, object], prompt: list[int]
) -> None:
    expected_tokens = decoded(rig, tiny_models["llama"], prompt, some_samplers(), paged=True)
    tiny, samplers = rig(tiny_models["llama"], paged=True), some_samplers()
    tables = [tiny.table(40) for _ in samplers]
    lengths = [5 + 3 * i for i in range(len(samplers))]
    for length, table in zip(lengths, tables, strict=True):
        tiny.logits(prompt[: length - 1], 0, table)
    outputs: list[list[int]] = [[] for _ in samplers]
    before = None
    for step in range(STEPS + 1):
        launched = None
        if step < STEPS:
            parts = [
                StepInput([prompt[n - 1]], n - 1, table, sampler)
                if before is None
                else StepInput((), n - 1 + step, table, sampler, follows=row)
                for row, (n, table, sampler) in enumerate(zip(lengths, tables, samplers, strict=True))
            ]
            launched = tiny.backend.launch("model", parts, before)
        if before is not None:
            for sampler, output, sampled in zip(samplers, outputs, before.results(), strict=True):
                sampler.accept(sampled.token)
                output.append(sampled.token)
        before = launched
    assert outputs == expected_tokens


def test_a_step_of_more_than_one_tile_follows_sequences_from_tile_to_tile(
    rig: type, tiny_models: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aegaeon_sidecar.backends.torch.decodes.ROWS", (2, 8))
    tiny, count = rig(tiny_models["llama"], paged=True), 8 + 2
    tables = [tiny.table(16) for _ in range(count)]
    samplers = [SamplerState(SamplingParams(temperature=float(row % 2), seed=row)) for row in range(count)]
    first = tiny.backend.launch("model", [StepInput([row + 6], 0, tables[row], samplers[row]) for row in range(count)])
    left = range(1, count)  # the first one leaves: row 8 moves from the second tile to the first
    second = tiny.backend.launch(
        "model", [StepInput((), 1, tables[row], samplers[row], follows=row) for row in left], first
    )
    tokens = [sampled.token for sampled in first.results()]
    for sampler, token in zip(samplers, tokens, strict=True):
        sampler.accept(token)
    ahead = [sampled.token for sampled in second.results()]
    waited = tiny.backend.step("model", [StepInput([tokens[row]], 1, tables[row], samplers[row]) for row in left])
    assert ahead == [sampled.token for sampled in waited]
    assert tiny.backend.may_follow(samplers)
    assert not tiny.backend.may_follow([*samplers, SamplerState(SamplingParams(presence_penalty=1.0))])


def test_sampling_that_depends_on_earlier_tokens_is_computed_synchronously(
    rig: type, tiny_models: dict[str, object], prompt: list[int]
) -> None:
    def samplers() -> list[SamplerState]:
        return [
            SamplerState(SamplingParams(repetition_penalty=1.3), prompt=prompt[:4]),
            SamplerState(SamplingParams(logprobs=3)),
            SamplerState(),
        ]

    directory = tiny_models["qwen2"]
    usual = decoded(rig, directory, prompt, samplers(), paged=False)
    assert decoded(rig, directory, prompt, samplers(), paged=True) == usual
    assert [on_device(sampler) for sampler in samplers()] == [False, False, True]


def test_a_step_that_cannot_be_launched_is_refused(rig: type, tiny_models: dict[str, object]) -> None:
    tiny = rig(tiny_models["llama"], paged=True)
    table = tiny.table(16)
    with pytest.raises(BackendError, match="not launched"):
        tiny.backend.launch("model", [StepInput((), 1, table, None, follows=0)])
    prefill = tiny.backend.launch("model", [StepInput([1, 2], 0, table, None)])
    with pytest.raises(BackendError, match="not of decodes"):
        tiny.backend.launch("model", [StepInput((), 2, table, None, follows=0)], prefill)
    with pytest.raises(BackendError, match="needs 2 blocks"):
        tiny.backend.launch("model", [StepInput([1], 16, table, None)])


@pytest.mark.parametrize("seed", range(4))
def test_picks_on_the_device_are_those_of_the_host(seed: int) -> None:
    random = np.random.default_rng(seed)
    samplers = random_samplers(random, 64)
    logits = torch.from_numpy(random.normal(scale=3.0, size=(64, 200)).astype(np.float32))
    rules = torch.from_numpy(numbers(samplers, [0] * 64))
    assert pick(logits, rules).tolist() == [sampled.token for sampled in choose(logits, samplers)]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter computes in numpy, which says so
def test_rows_that_are_not_finite_are_refused_and_their_neighbours_are_unaffected(
    rig: type, nan_model: object, prompt: list[int]
) -> None:
    """Also in the step behind it, which is launched before anybody knows."""
    tiny, samplers = rig(nan_model, paged=True), some_samplers()
    tables, spoiled = [tiny.table(40) for _ in samplers], tiny.table(40)
    for table in (*tables, spoiled):
        tiny.logits(prompt[:4], 0, table)

    def two_steps(parts: list[StepInput]) -> list[Any]:
        first = tiny.backend.launch("model", parts)
        ahead = [
            StepInput((), part.position + 1, part.blocks, part.sampler, follows=row) for row, part in enumerate(parts)
        ]
        second = tiny.backend.launch("model", ahead, first)
        return [*first.results(), *second.results()]

    innocent = [tiny.input([prompt[4]], 4, table, sampler) for table, sampler in zip(tables, samplers, strict=True)]
    alone = two_steps(innocent)
    for asked in ({}, {"temperature": 1.0}):
        poison = tiny.input([NAN_TOKEN], 4, spoiled, SamplerState(SamplingParams(**asked)))
        results = two_steps([innocent[0], poison, *innocent[1:]])
        assert [results.pop(5), results.pop(1)] == [NotFinite(), NotFinite()]
        assert results == alone
    poison = tiny.input([NAN_TOKEN], 4, spoiled, SamplerState(SamplingParams(logit_bias={5: 1.0})))
    assert tiny.backend.step("model", [poison, *innocent]) == [NotFinite(), *alone[:3]]


def test_a_token_outside_the_vocabulary_never_gets_to_the_device(rig: type, tiny_models: dict[str, object]) -> None:
    tiny = rig(tiny_models["llama"], paged=True)
    for token in (384, 2**31, -1):
        with pytest.raises(BackendError, match="token from 0 to 383"):
            tiny.backend.launch("model", [StepInput([token], 0, tiny.table(1), SamplerState())])
