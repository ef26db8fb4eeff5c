"""Eviction of the node's host cache: 50 models in room for 10, in the orders that caches like least.

Every use is checked: never over budget, never a pinned image gone; the hit rate is held against an ideal LRU's.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Row, report

from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.image import Image

MODELS, ROOM, USES = 50, 10, 3000
IMAGE_BYTES = 64 << 10
PINNED = 2  # the newest few, as residents are; three sidecars, each bringing one in, hold 9 of the 10 places


def zipf(rng: random.Random) -> Iterator[int]:
    weights = [1 / rank for rank in range(1, MODELS + 1)]
    return iter(rng.choices(range(MODELS), weights, k=USES))


def scan(rng: random.Random) -> Iterator[int]:
    """One more than fits, round and round: an LRU never hits."""
    return (use % (ROOM + 1) for use in range(USES))


def bursts(rng: random.Random) -> Iterator[int]:
    """A few hot models, broken by scans of all the others."""
    return (rng.randrange(6) if use % 40 < 30 else use % MODELS for use in range(USES))


class Counted:
    """Uses of one cache with the newest PINNED images held; counts fills and asserts what may never happen."""

    def __init__(self, folder: Path) -> None:
        self.cache = HostCache(folder, ROOM * IMAGE_BYTES)
        self.fills = 0
        self.held: deque[Image] = deque()

    def use(self, model: int) -> None:
        def fill(file: int) -> str:
            self.fills += 1
            os.pwrite(file, bytes([model]) * IMAGE_BYTES, 0)
            return f"content-{model}"

        self.held.append(self.cache.obtain(f"model-{model}", IMAGE_BYTES, fill))
        if len(self.held) > PINNED:
            self._let_go(self.held.popleft())
        assert self.cache.used_bytes() <= ROOM * IMAGE_BYTES, "over budget"
        assert all(os.fstat(image._file).st_nlink for image in self.held), "a pinned image was evicted"

    def close(self) -> None:
        for image in self.held:
            self._let_go(image)
        self.held.clear()

    def _let_go(self, image: Image) -> None:
        image.unpin()
        image.close()


def ideal_hits(order: list[int]) -> int:
    """An LRU in plain words."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for model in order:
        hits += model in held
        held[model] = None
        held.move_to_end(model)
        if len(held) > ROOM:
            held.popitem(last=False)
    return hits


def order_of(name: str, uses: Iterator[int], folder: Path) -> list[Row]:
    order = list(uses)
    inside = folder / name
    inside.mkdir()
    counted = Counted(inside)
    begin = time.perf_counter()
    for model in order:
        counted.use(model)
    took = time.perf_counter() - begin
    counted.close()
    ours, ideal = (len(order) - counted.fills) / len(order), ideal_hits(order) / len(order)
    return [
        Row(f"cache: hit rate, {name} order (limit: an ideal LRU)", ours, "", ideal or None, ">=", 0.95),
        Row(f"cache: one use, {name} order", took / len(order) * 1e3, "ms"),
    ]


def sidecar(folder: str, seed: int) -> None:
    """What one of several processes does; an assertion ends it with status 1."""
    counted = Counted(Path(folder))
    for model in zipf(random.Random(seed)):
        counted.use(model)
    counted.close()


def together(folder: Path) -> Row:
    inside = folder / "together"
    inside.mkdir()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=sidecar, args=(str(inside), seed)) for seed in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    broken = sum(process.exitcode != 0 for process in processes)
    return Row("cache: of 3 sidecars at once, those that saw a rule broken", broken, "", 0.5, "<=")


def main() -> int:
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="aegaeon-bench-", dir=shm if shm.is_dir() else None) as name:
        folder, rows = Path(name), []
        for order in (zipf, scan, bursts):
            rows += order_of(order.__name__, order(random.Random(1)), folder)
        return not report("cache", [*rows, together(folder)])


if __name__ == "__main__":
    sys.exit(main())
