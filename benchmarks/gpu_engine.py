"""A whole engine on a GPU: a batch and its KV are preempted for another's, and turns alternate between two residents.

The model is a slice of an 8B's layers, so that weights and KV are in the proportions of the whole. Needs what a sidecar
needs: gRPC and transformers beside torch.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu_rig import SLAB_BYTES, Bench, begin, link_rates
from benchmarks.report import Row
from benchmarks.switch import residents

from aegaeon_cli.bench.batch import prepare, to_and_fro
from aegaeon_cli.bench.testing.rig import OneEngine, Size, make_model, one_engine

MODEL = Size(hidden=4096, layers=6, vocabulary=32000)  # 2.5 GB in bfloat16
SMALL_MODEL = Size(hidden=256, layers=2, vocabulary=2048)
SLABS = 200  # two of them with their KV
KV_SLABS = 16  # of a batch
SEQUENCES, TOKENS = 8, 500
BATCHES = 12


async def batches(one: OneEngine, names: list[str], link: float) -> list[Row]:
    """To and fro between two batches with their KV, of which memory holds one, so slabs are mapped anew; medians."""
    seqs = {name: await prepare(one, name, SEQUENCES, TOKENS) for name in names}
    weights, pool = one.engine.state.table.models[names[0]].range, one.engine.state.kv.device.pool
    assert weights is not None
    others = pool.take(pool.free - weights.slabs - KV_SLABS)
    runs = await to_and_fro(one, seqs, BATCHES, lambda engine, model: link)
    pool.give(others)
    middle = statistics.median
    taken, limit = middle(run.moved_s for run in runs), middle(run.link_limit_s for run in runs)
    return [
        Row("batch of 8 x 500 tokens (limit: max(weights, KV) / link)", taken * 1e3, "ms", limit * 1e3, "<=", 1.15),
        Row("mapping in it", middle(run.mapping_s for run in runs) * 1e3, "ms"),
        Row("weights moved in it", middle(run.bytes_of("load") for run in runs) / 1e6, "MB"),
        Row("KV that came in", middle(run.bytes_of("swap-in") for run in runs) / 1e6, "MB"),
        Row("of its time beside the weights", middle(run.hidden("swap-in") for run in runs) * 100, "%"),
    ]


async def run(bench: Bench, folder: Path) -> None:
    link, _ = link_rates(bench.device, bench.sized(1 << 30, 1 << 24))
    size = bench.sized(MODEL, SMALL_MODEL)
    models = {name: make_model(folder / name, seed, size) for seed, name in enumerate(("one", "other"))}
    slab_bytes = bench.sized(SLAB_BYTES, 1 << 20)
    memory: dict[str, Any] = {
        "device_bytes": SLABS * slab_bytes,
        "slab_bytes": slab_bytes,
        "cache_bytes": bench.sized(8 << 30, 1 << 28),
    }
    host_kv = bench.sized(2 << 30, 1 << 26)
    async with one_engine(folder, **memory, host_kv_bytes=host_kv, device=bench.device, dtype="bfloat16") as one:
        await one.serve(models)
        bench.figures.add(*await batches(one, list(models), link))
        bench.figures.add(*await residents(one, list(models)))


def main() -> int:
    bench, _ = begin("gpu_engine", __doc__)
    with tempfile.TemporaryDirectory(prefix="aegaeon-bench-", dir="/dev/shm") as folder:
        asyncio.run(run(bench, Path(folder)))
    return bench.status


if __name__ == "__main__":
    sys.exit(main())
