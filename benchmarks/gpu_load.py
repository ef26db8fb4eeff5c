"""A model from disk to the GPU through the stage ring, bypassing the host cache, beside dd: what a small node does.

The model and the way dd is measured are those of benchmarks.load.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu_rig import SLAB_BYTES, Bench, begin
from benchmarks.load import CONFIG, ROUNDS, Peak, dd, load, write_model
from benchmarks.report import Row
from torch.utils.dlpack import from_dlpack

from aegaeon_native import Range
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.weights.ring import READERS, StageRing


def measure(bench: Bench, directory: Path, layout: Layout) -> None:
    """Turn by turn; dd alone and as many at a time as the ring has readers, of which the faster is the limit."""
    slabs = -(-layout.weight_bytes // SLAB_BYTES)
    pool = bench.pool(slabs)
    weights = Range(pool, slabs)
    weights.map(0, pool.take(slabs))
    here = [from_dlpack(weights.dlpack(0, layout.weight_bytes)).numpy()] if bench.gpu is None else []
    disk, loads = [], []
    with Peak() as peak:
        ring = StageRing(gpu=bench.gpu)
        for _ in range(bench.sized(ROUNDS, 1)):
            disk.append(max(dd(layout.files[0], readers) for readers in {1, READERS}))
            loads.append(load(directory, layout, ring, *here, on_device=0 if here else weights.address))
    limit = statistics.median(disk) / 1e9
    bench.figures.add(
        Row("load: from disk to the GPU (limit: dd)", statistics.median(loads) / 1e9, "GB/s", limit, ">=", 0.9),
        Row("load: host memory it needs", (peak.most_bytes - peak.first_bytes) / 1e6, "MB", 300, "<="),
    )


def main() -> int:
    bench, _ = begin("gpu_load", __doc__)
    with tempfile.TemporaryDirectory(prefix="aegaeon-bench-") as disk:
        directory = Path(disk) / "model"
        measure(bench, directory, write_model(directory, bench.shape(CONFIG)))
    return bench.status


if __name__ == "__main__":
    sys.exit(main())
