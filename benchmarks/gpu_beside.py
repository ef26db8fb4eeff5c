"""Decode steps of one model while another's weights come in: what a reader of the first one notices.

A copy engine serves one stream as long as that has copies queued, so a lane pauses after each burst; the same without
pauses is measured beside it. What a step copies (inputs there, tokens back) is a few hundred bytes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from benchmarks.gpu_rig import EIGHT_B, GB, MODEL, Bench, Placed, begin, link_rates, placed
from benchmarks.report import Row

from aegaeon_native import CopyLane, Range, SlabPool
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.sampling import SamplerState
from aegaeon_sidecar.weights.page_locks import PIECE_BYTES

SLAB_BYTES, SLABS = 32 << 20, 256  # 8 GiB from page-locked memory
MAPPED, MAPPING_S = 64, 0.3
CONTEXT, BATCH, ALONE = 1024, 4, 32
PAUSES = {"as lanes do": {}, "bursts of 16 MiB": {"burst_bytes": 16 << 20}, "no pause": {"burst_bytes": 1 << 62}}


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

    def steps_while(self, lane: CopyLane) -> list[float]:
        """Seconds of each step that ended while the lane was copying, or was waiting when it ended."""
        taken = []
        while lane.pending:
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
        start = time.perf_counter()
        lane.copy(place.address, host.address, nbytes)
        taken = decoding.steps_while(lane) or [0.0]
        lane.synchronize()
        rate = nbytes / (time.perf_counter() - start)
        lane.close()
        bench.figures.add(*_rows(name, taken, alone_s, rate, link, held=not pause))


def beside_mapping(bench: Bench, decoding: Decoding, pool: SlabPool, alone_s: float) -> None:
    """The same steps while another thread maps and unmaps slabs, and nothing is copied."""
    place, slabs, ends = Range(pool, pool.free), pool.take(pool.free), time.perf_counter() + MAPPING_S

    def map_and_unmap() -> None:
        while time.perf_counter() < ends:
            place.map(0, slabs)
            place.unmap(0, len(slabs))

    _beside_thread(bench, decoding, map_and_unmap, "calls that map", alone_s)
    place.close()
    pool.give(slabs)


def beside_locking(bench: Bench, decoding: Decoding, alone_s: float) -> None:
    """The same steps while another thread locks an image's pages, in pieces as engines do."""
    if bench.gpu is None:
        return
    gpu, ends = bench.gpu, time.perf_counter() + MAPPING_S
    pages = torch.ones(bench.sized(1 << 30, 1 << 24), dtype=torch.uint8)
    piece_bytes = min(PIECE_BYTES, pages.nbytes)

    def lock_and_unlock() -> None:
        while time.perf_counter() < ends:
            for at in range(0, pages.nbytes, piece_bytes):
                gpu.lock_pages(pages.data_ptr() + at, piece_bytes)
            for at in range(0, pages.nbytes, piece_bytes):
                gpu.unlock_pages(pages.data_ptr() + at)

    _beside_thread(bench, decoding, lock_and_unlock, "calls that lock pages", alone_s)


def _beside_thread(bench: Bench, decoding: Decoding, action: Callable[[], None], what: str, alone_s: float) -> None:
    """Steps while a thread does that."""
    other = threading.Thread(target=action)
    other.start()
    taken = decoding.steps_s(1)
    while other.is_alive():
        taken += decoding.steps_s(1)
    other.join()
    bench.figures.add(
        Row(f"steps beside {what}", len(taken), "steps"),
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
        if bench.gpu is not None:
            torch.cuda.synchronize(bench.device)
        for used in (place, pool, host):
            used.close()
    return bench.status


if __name__ == "__main__":
    sys.exit(main())
