"""A whole engine on a GPU: a batch and its KV are preempted for another's, and turns alternate between two residents.

The model is a slice of an 8B's layers, so that weights and KV are in the proportions of the whole. Needs what a sidecar
needs: gRPC and transformers beside torch.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from benchmarks.gpu_rig import SLAB_BYTES, gpu, link_rates
from benchmarks.report import Row, report
from benchmarks.switch import in_shared_memory, residents

from aegaeon_cli.bench.batch import prepare, to_and_fro
from aegaeon_cli.bench.testing.rig import OneEngine, Size, make_model, one_engine

MODEL = Size(hidden=4096, layers=6, vocabulary=32000)  # 2.5 GB in bfloat16
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


async def run(folder: Path) -> bool:
    link, _ = link_rates()
    models = {name: make_model(folder / name, seed, MODEL) for seed, name in enumerate(("one", "other"))}
    memory = {"device_bytes": SLABS * SLAB_BYTES, "slab_bytes": SLAB_BYTES, "cache_bytes": 8 << 30}
    async with one_engine(folder, **memory, host_kv_bytes=2 << 30, device="cuda:0", dtype="bfloat16") as one:
        await one.serve(models)
        rows = await batches(one, list(models), link) + await residents(one, list(models))
    return report("gpu_engine", rows)


def main() -> int:
    gpu()
    return in_shared_memory(run)


if __name__ == "__main__":
    sys.exit(main())
