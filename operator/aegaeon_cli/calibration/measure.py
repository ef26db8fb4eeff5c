"""Prefills and decode steps, timed on this machine with the backend that serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aegaeon_cli.calibration.copies import MOST_BYTES, stall_s_per_byte
from aegaeon_cli.calibration.timing import median_seconds

if TYPE_CHECKING:
    from aegaeon_native import BlockPool, CudaDevice
    from aegaeon_sidecar.backends import Launched, StepInput
    from aegaeon_sidecar.backends.torch import TorchBackend
    from aegaeon_sidecar.models.placement import Layout

_TOKEN = 5  # any id that every vocabulary has; arithmetic takes as long for all
_AHEAD = 16  # steps on a GPU, each launched before the tokens of the one before are read, as engines do
_LARGE = 1 << 30  # bytes of weights that are read from disk once: more says nothing new, and takes long


@dataclass(frozen=True, slots=True)
class Grid:
    """The measured points: prompt lengths, and contexts (tokens of each sequence) by batch size. Medians of `rounds`.
    `loads`: how many loads run beside steps, on a GPU, whose copy engines serve both."""

    prompts: tuple[int, ...] = (16, 64, 128, 256, 512)
    contexts: tuple[int, ...] = (16, 128, 384)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    rounds: int = 5
    loads: int = 0


def grid_of(gpu: CudaDevice | None, rounds: int) -> Grid:
    """The lengths and batch sizes that this device serves."""
    if gpu is None:
        return Grid(rounds=rounds)
    return Grid((128, 512, 2048, 8192), (128, 1024, 4096), (1, 4, 16), rounds, rounds)


@dataclass(slots=True)
class Measured:
    """Seconds of a prompt by its tokens, and of a step by total context and batch size. `disk_bytes_per_s`: the rate at
    which the stage ring fills device memory from the model's files, bypassing the page cache. `stall_s_per_byte`:
    seconds by which each byte of a load delays steps beside it; 0 when not measured."""

    layout: Layout
    disk_bytes_per_s: float
    stall_s_per_byte: float = 0.0
    prefill: list[tuple[int, float]] = field(default_factory=list)
    step: list[tuple[int, int, float]] = field(default_factory=list)


def measure(
    directory: Path,
    dtype: str,
    max_model_len: int,
    grid: Grid,
    slab_bytes: int,
    task: str = "",
    gpu: CudaDevice | None = None,
) -> Measured:
    """Time one model over the points of the grid that fit its length, on the GPU, or on the CPU without one.

    `task`: the model's task; "": detected from its files. For a pooling model a step is a prompt's next token.
    Raises the sidecar's ModelError for a bad directory, NativeError where the GPU's memory does not suffice.
    """
    from aegaeon_sidecar.backends.torch import TorchBackend

    backend = TorchBackend(device="cpu" if gpu is None else f"cuda:{gpu.ordinal}", dtype=dtype)
    layout = backend.describe(directory, max_model_len, task)
    blocks = _blocks_needed(layout, grid)
    with _placed(backend, layout, directory, blocks, slab_bytes, gpu, grid.rounds) as (pool, rate):
        bench, measured = _Bench(backend, layout, pool, ahead=gpu is not None), Measured(layout, rate)
        for tokens in _within(grid.prompts, layout.max_model_len):
            measured.prefill.append((tokens, bench.prefill_s(tokens, grid.rounds)))
        for context in _within(grid.contexts, layout.max_model_len - (1 if gpu is None else _AHEAD)):
            for batch in grid.batches:
                measured.step.append((context * batch, batch, bench.step_s(batch, context, grid.rounds)))
        if grid.loads:
            nbytes, context = min(layout.weight_bytes, MOST_BYTES), _within(grid.contexts, layout.max_model_len)[0]
            with bench.steps(1, context) as steps:
                measured.stall_s_per_byte = stall_s_per_byte(steps, nbytes, slab_bytes, grid.loads, gpu)
    return measured


@contextmanager
def _placed(
    backend: TorchBackend,
    layout: Layout,
    directory: Path,
    blocks: int,
    slab_bytes: int,
    gpu: CudaDevice | None,
    rounds: int,
) -> Iterator[tuple[BlockPool, float]]:
    """Place the model's weights and `blocks` KV blocks in slabs and register it; yields the blocks and the disk's read
    rate."""
    from aegaeon_native import BlockPool, Range
    from aegaeon_sidecar.memory.gpu import device_pool
    from aegaeon_sidecar.models.weight_files import look
    from aegaeon_sidecar.weights.fill import fill
    from aegaeon_sidecar.weights.ring import StageRing

    own = -(-layout.weight_bytes // slab_bytes)
    more = -(-blocks // (slab_bytes // layout.kv_block_bytes))
    with ExitStack() as stack:
        pool = device_pool((gpu,), "aegaeon-calibrate", slab_bytes, own + more)
        stack.callback(pool.close)
        weights, kv = Range(pool, own), BlockPool(pool, layout.kv_block_bytes, more)
        stack.callback(kv.close)
        stack.callback(weights.close)
        weights.map(0, pool.take(own))
        files, ring = look(directory, layout), StageRing(gpu=gpu)
        views, address = ([weights.view(0, layout.weight_bytes)], 0) if gpu is None else ([], weights.address)
        often = 0 if layout.weight_bytes > _LARGE else min(rounds, 3)
        seconds = median_seconds(lambda: fill(files, views, ring, on_device=address, hashed=False), often)
        backend.register("model", directory, layout, weights.dlpack(0, layout.weight_bytes))
        stack.callback(backend.forget, "model")
        backend.bind_kv(layout.kv_shape, kv.dlpack())
        yield kv, layout.weight_bytes / seconds


class _Bench:
    """Times one registered model. `ahead`: each step is launched before the tokens of the previous one are read."""

    def __init__(self, backend: TorchBackend, layout: Layout, blocks: BlockPool, ahead: bool) -> None:
        self._backend, self._blocks = backend, blocks
        self._block_tokens = layout.kv_block_tokens
        self._pools, self._ahead = layout.pools, ahead and not layout.pools

    def prefill_s(self, tokens: int, rounds: int) -> float:
        """Median seconds of `rounds` prompts."""
        with self._inputs(1, tokens, 0) as inputs:
            return median_seconds(lambda: self._backend.step("model", inputs), rounds)

    def step_s(self, batch: int, context: int, rounds: int) -> float:
        """Median seconds of `rounds` steps of `batch` sequences with `context` tokens each."""
        with self.steps(batch, context) as steps:
            return median_seconds(steps, rounds) / (_AHEAD if self._ahead else 1)

    @contextmanager
    def steps(self, batch: int, context: int) -> Iterator[Callable[[], object]]:
        """A step of `batch` sequences with `context` tokens each, or as many steps as are launched ahead."""
        with self._inputs(batch, 1, context) as inputs:
            yield partial(self._turn, inputs) if self._ahead else partial(self._backend.step, "model", inputs)

    def _turn(self, inputs: list[StepInput]) -> None:
        before: Launched | None = None
        for step in range(_AHEAD):
            parts = inputs
            if before is not None:
                parts = [replace(i, tokens=(), position=i.position + step, follows=r) for r, i in enumerate(inputs)]
            launched = self._backend.launch("model", parts, before)
            if before is not None:
                before.results()
            before = launched
        assert before is not None
        before.results()

    @contextmanager
    def _inputs(self, batch: int, tokens: int, position: int) -> Iterator[list[StepInput]]:
        """Inputs of sequences with blocks of their own, freed at the end of the `with`."""
        from aegaeon_proto.engine.sampling import PoolingParams
        from aegaeon_sidecar.backends import StepInput
        from aegaeon_sidecar.sampling import SamplerState

        each = -(-(position + tokens + _AHEAD) // self._block_tokens)
        tables = [self._blocks.allocate(each, 2**30) for _ in range(batch)]
        sampler, pooling = (None, PoolingParams()) if self._pools else (SamplerState(), None)
        yield [StepInput([_TOKEN] * tokens, position, table, sampler, pooling=pooling) for table in tables]
        for table in tables:
            self._blocks.release(table)


def _blocks_needed(layout: Layout, grid: Grid) -> int:
    """Blocks for the longest prompt, and for the largest batch of the longest contexts."""
    longest = max(*grid.prompts, max(grid.contexts) * max(grid.batches)) + _AHEAD * max(grid.batches)
    return -(-longest // layout.kv_block_tokens) + 2 * max(grid.batches)


def _within(lengths: tuple[int, ...], limit: int) -> list[int]:
    """The lengths that the model supports; only its limit when that is shorter than all."""
    return [length for length in lengths if length <= limit] or [limit]
