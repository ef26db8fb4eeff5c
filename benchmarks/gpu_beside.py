"""Decode steps of one model while another's weights come in: what a reader of the first one notices.

A copy engine serves one stream as long as that has copies queued, so a lane pauses after each burst; other bursts and
no pauses are measured beside it, and two streams that take turns without the host, which needs no pause. What a step
copies (inputs there, tokens back) is a few hundred bytes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from benchmarks.gpu_rig import EIGHT_B, GB, MODEL, Bench, Placed, begin, link_rates, placed
from benchmarks.report import Row

from aegaeon_native import CopyLane, Range, SlabPool
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.sampling import SamplerState
from aegaeon_sidecar.weights.page_locks import PIECE_BYTES

SLAB_BYTES, SLABS = 32 << 20, 256  # 8 GiB from page-locked memory
MAPPED, MAPPING_S, LOCKING_S = 64, 0.3, 1.0
LEAST_STEPS = 20  # beside calls of the driver: of fewer the longest says nothing
CONTEXT, BATCH, ALONE = 1024, 4, 32
BURST_BYTES = 64 << 20  # of two streams in turn
AS_LANES_DO = "as lanes do"
PAUSES = {
    AS_LANES_DO: {},
    "bursts of 16 MiB": {"burst_bytes": 16 << 20},
    "bursts of 128 MiB": {"burst_bytes": 128 << 20},
    "bursts of 256 MiB": {"burst_bytes": 256 << 20},
    "no pause": {"burst_bytes": 1 << 62},
}


class Decoding:
    """Steps of one batch at the same position again and again, each launched before the one before is read."""

    def __init__(self, model: Placed, follows: bool) -> None:
        """`follows`: tokens stay on the device, as on a GPU."""
        self._model, self._follows, self._samplers = model, follows, [SamplerState()] * BATCH
        self._tables = [model.blocks.allocate(-(-(CONTEXT + 1) // 16), 2**30) for _ in self._samplers]
        self._before: Launched | None = None

    def step(self) -> None:
        """Launches the next; waits for the one before."""
        before, follows = self._before, self._follows and self._before is not None
        parts = [
            StepInput(() if follows else [5], CONTEXT, table, sampler, row if follows else None)
            for row, (table, sampler) in enumerate(zip(self._tables, self._samplers, strict=True))
        ]
        self._before = self._model.backend.launch(MODEL, parts, before)
        if before is not None:
            before.results()

    def steps_s(self, count: int) -> list[float]:
        """Seconds of each of so many."""
        return [self._timed() for _ in range(count)]

    def steps_while(self, goes_on: Callable[[], bool]) -> list[float]:
        """Seconds of each step that began while this was true."""
        taken = []
        while goes_on():
            taken.append(self._timed())
        return taken

    def _timed(self) -> float:
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start


def beside(bench: Bench, decoding: Decoding, host: SlabPool, place: Range, alone_s: float, link: float) -> None:
    """A load under each way of pausing."""
    nbytes = host.total * host.slab_bytes
    for name, pause in PAUSES.items():
        lane = CopyLane("weights", device=bench.gpu, **pause)
        copy = partial(lane.copy, place.address, host.address, nbytes)
        taken, seconds = beside_load(decoding, copy, lane.synchronize)
        lane.close()
        bench.figures.add(*_rows(name, taken, alone_s, nbytes / seconds, link, held=name == AS_LANES_DO))


def beside_load(decoding: Decoding, queue: Callable[[], None], wait: Callable[[], object]) -> tuple[list[float], float]:
    """Steps beside a load, and its seconds. `wait` returns at its end: the step that was running then ends later."""
    start = time.perf_counter()
    queue()

    def ends_at() -> float:
        wait()
        return time.perf_counter()

    with ThreadPoolExecutor(1) as other:
        end = other.submit(ends_at)
        taken = decoding.steps_while(lambda: not end.done())
        return taken or [0.0], end.result() - start


def beside_streams_in_turn(bench: Bench, decoding: Decoding, nbytes: int, alone_s: float, link: float) -> None:
    """Bursts on two streams, each waiting on the device for the other's: are steps let in between them?"""
    if bench.gpu is None:
        return
    host = torch.empty(BURST_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(host, device=bench.device)
    streams = torch.cuda.Stream(bench.device), torch.cuda.Stream(bench.device)
    ends, bursts = [torch.cuda.Event(), torch.cuda.Event()], nbytes // BURST_BYTES

    def queue() -> None:
        for number in range(bursts):
            stream, other = streams[number % 2], ends[(number + 1) % 2]
            stream.wait_event(other)
            with torch.cuda.stream(stream):
                target.copy_(host, non_blocking=True)
            ends[number % 2].record(stream)

    taken, seconds = beside_load(decoding, queue, ends[(bursts - 1) % 2].synchronize)
    rate = bursts * BURST_BYTES / seconds
    bench.figures.add(*_rows("two streams in turn", taken, alone_s, rate, link, held=False))


def beside_mapping(bench: Bench, decoding: Decoding, pool: SlabPool, alone_s: float) -> None:
    """The same steps while another thread maps and unmaps slabs, and nothing is copied."""
    place, slabs = Range(pool, pool.free), pool.take(pool.free)

    def map_and_unmap() -> None:
        place.map(0, slabs)
        place.unmap(0, len(slabs))

    _beside_calls(bench, decoding, map_and_unmap, MAPPING_S, "calls that map", alone_s)
    place.close()
    pool.give(slabs)


def beside_locking(bench: Bench, decoding: Decoding, alone_s: float) -> None:
    """The same steps while another thread locks an image's pages, in pieces as engines do."""
    if bench.gpu is None:
        return
    gpu, pages = bench.gpu, torch.ones(bench.sized(1 << 30, 1 << 24), dtype=torch.uint8)
    piece_bytes = min(PIECE_BYTES, pages.nbytes)

    def lock_and_unlock() -> None:
        for at in range(0, pages.nbytes, piece_bytes):
            gpu.lock_pages(pages.data_ptr() + at, piece_bytes)
        for at in range(0, pages.nbytes, piece_bytes):
            gpu.unlock_pages(pages.data_ptr() + at)

    _beside_calls(bench, decoding, lock_and_unlock, LOCKING_S, "calls that lock pages", alone_s)


def _beside_calls(
    bench: Bench, decoding: Decoding, action: Callable[[], None], seconds: float, what: str, alone_s: float
) -> None:
    """Steps while a thread does that again and again."""

    def repeat() -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            action()

    with ThreadPoolExecutor(1) as other:
        calls = other.submit(repeat)
        taken = decoding.steps_while(lambda: not calls.done()) or [0.0]
        calls.result()
    bench.figures.add(
        Row(f"steps beside {what}", len(taken), "steps", LEAST_STEPS),
        Row(f"the longest of them, {what} (limit: a step alone)", 1e3 * max(taken), "ms", 1e3 * alone_s, "<=", 2.0),
    )


def _rows(name: str, taken: Sequence[float], alone_s: float, rate: float, link: float, held: bool) -> list[Row]:
    """Bars for what lanes do; the others say why they do it."""
    worst, least = (1e3 * alone_s, link / GB) if held else (None, None)
    return [
        Row(f"steps beside a load, {name}", len(taken), "steps"),
        Row(f"the longest of them, {name} (limit: a step alone)", 1e3 * max(taken), "ms", worst, "<=", 2.0),
        Row(f"their median, {name}", 1e3 * statistics.median(taken), "ms"),
        Row(f"the load, {name} (limit: pinned copy in this run)", rate / GB, "GB/s", least, ">=", 0.9),
    ]


def main() -> int:
    bench, _ = begin("gpu_beside", __doc__)
    link, _ = link_rates(bench.device, bench.sized(1 << 30, 1 << 24))
    slabs, slab_bytes = bench.sized(SLABS, 8), bench.sized(SLAB_BYTES, 1 << 20)
    tokens = BATCH * (CONTEXT + 32)
    with tempfile.TemporaryDirectory() as folder, placed(bench, Path(folder), bench.shape(EIGHT_B), tokens) as model:
        host = SlabPool.shared(f"/dev/shm/aegaeon-beside-{os.getpid()}", slab_bytes, slabs, bench.gpu)
        pool = bench.pool(slabs + bench.sized(MAPPED, 2), slab_bytes)
        place = Range(pool, slabs)
        place.map(0, pool.take(slabs))
        decoding = Decoding(model, follows=bench.gpu is not None)
        decoding.steps_s(4)
        alone_s = statistics.median(decoding.steps_s(bench.sized(ALONE, 2)))
        bench.figures.add(Row("a step alone", 1e3 * alone_s, "ms"))
        beside(bench, decoding, host, place, alone_s, link)
        beside_mapping(bench, decoding, pool, alone_s)
        beside_locking(bench, decoding, alone_s)
        beside_streams_in_turn(bench, decoding, slabs * slab_bytes, alone_s, link)
        if bench.gpu is not None:
            torch.cuda.synchronize(bench.device)
        for used in (place, pool, host):
            used.close()
    return bench.status


if __name__ == "__main__":
    sys.exit(main())
