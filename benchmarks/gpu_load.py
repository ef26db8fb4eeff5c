"""A model from disk to the GPU through the stage ring, bypassing the host cache, beside dd: what a small node does.

The model and the way dd is measured are those of benchmarks.load.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu_rig import SLAB_BYTES, gpu
from benchmarks.load import ROUNDS, Peak, dd, load, write_model
from benchmarks.report import Row, report

from aegaeon_native import CudaDevice, Range, SlabPool
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.weights.ring import READERS, StageRing


def rows(device: CudaDevice, directory: Path, layout: Layout) -> list[Row]:
    """Turn by turn; dd alone and as many at a time as the ring has readers, of which the faster is the limit."""
    slabs = -(-layout.weight_bytes // SLAB_BYTES)
    pool = SlabPool.cuda(device, SLAB_BYTES, slabs)
    weights = Range(pool, slabs)
    weights.map(0, pool.take(slabs))
    disk, loads = [], []
    with Peak() as peak:
        ring = StageRing(gpu=device)
        for _ in range(ROUNDS):
            disk.append(max(dd(layout.files[0], readers) for readers in {1, READERS}))
            loads.append(load(directory, layout, ring, on_device=weights.address))
    weights.close()
    limit = statistics.median(disk) / 1e9
    return [
        Row("load: from disk to the GPU (limit: dd)", statistics.median(loads) / 1e9, "GB/s", limit, ">=", 0.9),
        Row("load: host memory it needs", (peak.most_bytes - peak.first_bytes) / 1e6, "MB", 300, "<="),
    ]


def main() -> int:
    device = gpu()
    with tempfile.TemporaryDirectory(prefix="aegaeon-bench-") as disk:
        directory = Path(disk) / "model"
        return not report("gpu_load", rows(device, directory, write_model(directory)))


if __name__ == "__main__":
    sys.exit(main())
