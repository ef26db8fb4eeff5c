"""Switching among models of about 300 MB: a load from the host cache, a whole batch with its KV, a resident model.

A load is a map and a copy; the copy stands beside the memcpy of the same bytes, taken in the same round.
"""

from __future__ import annotations

import asyncio
import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.report import Row, report

from aegaeon_cli.bench.batch import MANY, MODEL, SLAB_BYTES, prepare, to_and_fro, to_residents
from aegaeon_cli.bench.testing.rig import OneEngine, make_model, one_engine
from aegaeon_proto.engine import commands

ROUNDS = 5
SEQUENCES, TOKENS = 8, 500
BATCHES = 12


async def loads(one: OneEngine, names: list[str]) -> list[Row]:
    """Every model in turn, each after the one before it was unloaded, and once more into the slabs that it left."""
    copied, plain, mapped, whole, again = [], [], [], [], []
    for number in range((ROUNDS + 1) * len(names)):
        name = names[number % len(names)]
        model, pool = one.engine.state.table.models[name], one.engine.state.kv.device.pool
        others = pool.take(number // len(names) % 2)  # so that its slabs are others than the last time, and are mapped
        done = await one.outcome(one.send(commands.Load(model=name, slabs=MANY)))
        begin = time.perf_counter()
        ctypes.memmove(model.range.address, model.image.address, model.image.nbytes)
        if number >= len(names):  # the first round touches the pages of pool and cache for the first time
            plain.append(model.image.nbytes / (time.perf_counter() - begin) / 1e9)
            copied.append(model.image.nbytes / model.copy_s / 1e9)
            mapped.append(model.map_s * 1e3)
            whole.append(done.seconds * 1e3)
        await one.outcome(one.send(commands.Unload(model=name)))
        done = await one.outcome(one.send(commands.Load(model=name, slabs=MANY)))
        assert done.bytes_moved == 0
        again.append(done.seconds * 1e3)
        await one.outcome(one.send(commands.Unload(model=name)))
        pool.give(others)
        one.scrub()
    middle = statistics.median
    return [
        Row("switch: copy of a load (limit: memcpy in this run)", middle(copied), "GB/s", middle(plain), ">=", 0.9),
        Row("switch: mapping 290 MB", middle(mapped), "ms"),
        Row("switch: whole load", middle(whole), "ms"),
        Row("switch: whole load into slabs not taken meanwhile", middle(again), "ms", 2.0, "<="),
    ]


async def batches(one: OneEngine, names: list[str]) -> list[Row]:
    """To and fro between two batches with their KV, of which memory holds the weights of one; medians."""
    seqs = {name: await prepare(one, name, SEQUENCES, TOKENS) for name in names}
    warm = await to_and_fro(one, seqs, BATCHES)
    await one.outcome(one.send(commands.Unload(model=warm[-1].coming)))
    middle = statistics.median
    return [
        Row(
            "switch: batch of 8 x 500 tokens (limit: memcpy of the same)",
            middle(run.moved_s - run.mapping_s for run in warm) * 1e3,
            "ms",
            middle(run.limit_s for run in warm) * 1e3,
            "<=",
            1.15,
        ),
        Row("switch: mapping beside it", middle(run.mapping_s for run in warm) * 1e3, "ms"),
        Row("switch: weights and KV moved in it", middle(run.nbytes for run in warm) / 1e6, "MB"),
        Row("switch: its first step begins at", middle(run.of("step")[0].begin_s for run in warm) * 1e3, "ms"),
        Row("switch: its KV came in beside the weights", middle(run.hidden("swap-in") for run in warm) * 100, "%"),
    ]


async def residents(one: OneEngine, names: list[str], prefix: str = "") -> list[Row]:
    """To and fro between two residents; `prefix`: of the figures' names."""
    for name in names:
        await one.outcome(one.send(commands.Load(model=name, slabs=MANY)))
    beyond_s = await to_residents(one, names)
    step_s = statistics.median(step.seconds for step in one.backend.steps)
    return [
        Row(f"{prefix}to a resident model, beyond its step", beyond_s * 1e3, "ms", 2.0, "<="),
        Row(f"{prefix}the step itself", step_s * 1e3, "ms"),
    ]


async def run(folder: Path) -> bool:
    models = {f"m{i}": make_model(folder / f"m{i}", i, MODEL) for i in range(4)}
    async with one_engine(folder, 96 * SLAB_BYTES, SLAB_BYTES, 2 << 30) as one:
        await one.serve(models)
        names = list(models)
        rows = await loads(one, names) + await batches(one, names[2:]) + await residents(one, names[:2], "switch: ")
    return report("switch", rows)


def in_shared_memory(benchmark: Callable[[Path], Coroutine[Any, Any, bool]]) -> int:
    """Run it with a folder that goes with it, in /dev/shm where there is one; the exit status."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="aegaeon-bench-", dir=shm if shm.is_dir() else None) as folder:
        return not asyncio.run(benchmark(Path(folder)))


def main() -> int:
    return in_shared_memory(run)


if __name__ == "__main__":
    sys.exit(main())
