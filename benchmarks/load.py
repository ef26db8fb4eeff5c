"""Loads from disk through the stage ring, against dd with the same pattern; the ring's size; what a cold load needs.

dd reads past the page cache in blocks of one chunk, and is the limit. A load does that and copies into slabs as well,
side by side, so memcpy measured in the same run stands beside it.
"""

from __future__ import annotations

import json
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from benchmarks.report import Row, report
from numpy.typing import NDArray

from aegaeon_native import Range, SlabPool
from aegaeon_sidecar.backends import Layout
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.fill import fill, identity
from aegaeon_sidecar.models.layout import plan
from aegaeon_sidecar.models.tensors import tensor_shapes
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.ring import CHUNK_BYTES, DEPTH, StageRing

SLAB = 32 << 20
ROUNDS = 5
GRID = [(1 << 20, 2), (1 << 20, 4), (1 << 20, 8), (4 << 20, 2), (4 << 20, 4), (16 << 20, 2)]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 10,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 16384,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}


def write_model(directory: Path) -> Layout:
    """About 2 GB of random float32 in one file."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    entries, end = {}, 0
    for name, shape in tensor_shapes(read_spec(directory)).items():
        begin, end = end, end + 4 * int(np.prod(shape))
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    block = np.random.default_rng(0).integers(0, 256, 8 << 20, dtype=np.uint8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, end, block.nbytes):
            file.write(block[: end - start].data)
    subprocess.run(["sync", "-d", str(directory / "model.safetensors")], check=True)
    return plan(directory, 0, "float32", 16)


def dd(file: Path, chunk_bytes: int) -> float:
    """Bytes per second of reading the file."""
    command = ["dd", f"if={file}", "of=/dev/null", f"bs={chunk_bytes}", "iflag=direct"]
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return file.stat().st_size / (time.perf_counter() - begin)


def load(directory: Path, layout: Layout, target: NDArray[np.uint8], ring: StageRing) -> float:
    """Bytes per second of a load from disk into slabs."""
    begin = time.perf_counter()
    fill(directory, layout, [target], ring, hashed=False)
    return layout.weight_bytes / (time.perf_counter() - begin)


def sizes(directory: Path, layout: Layout, target: NDArray[np.uint8]) -> list[Row]:
    """The grid that CHUNK_BYTES and DEPTH were chosen from and dd, turn by turn; the chosen one against dd."""
    rates: dict[tuple[int, int], list[float]] = {size: [] for size in GRID}
    dds, copies = [], []
    source = np.empty_like(target)
    source[:] = 1
    for _ in range(ROUNDS):
        dds.append(dd(layout.files[0], CHUNK_BYTES) / 1e9)
        begin = time.perf_counter()
        np.copyto(target, source)
        copies.append(target.nbytes / (time.perf_counter() - begin) / 1e9)
        for size, seen in rates.items():
            with StageRing("bench", *size) as ring:
                seen.append(load(directory, layout, target, ring) / 1e9)
    middle = {size: statistics.median(seen) for size, seen in rates.items()}
    read, copied = statistics.median(dds), statistics.median(copies)
    name = f"load: from disk, {DEPTH} x {CHUNK_BYTES >> 20} MiB (limit: dd)"
    grid = [Row(f"load: ring of {n} x {size >> 20} MiB", rate, "GB/s") for (size, n), rate in middle.items()]
    return [
        Row("load: dd from disk to nowhere", read, "GB/s"),
        Row("load: memcpy into slabs", copied, "GB/s"),
        Row(name, middle[CHUNK_BYTES, DEPTH], "GB/s", read, ">=", 0.9),
        *grid,
    ]


class Peak:
    """The most private memory (neither slabs nor host cache) that this process had, sampled every 2 ms."""

    def __enter__(self) -> Peak:
        self.first_bytes = self.most_bytes = _private_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.most_bytes = max(self.most_bytes, _private_bytes())


def _private_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return sum(int(kib) << 10 for kib in re.findall(r"^Rss(?:Anon|File):\s+(\d+)", status, re.MULTILINE))


def cold(folder: Path, directory: Path, layout: Layout, target: NDArray[np.uint8]) -> list[Row]:
    """A load of a model that was never read: into the slabs and, hashed on the way, into the host cache."""
    segments = folder / "segments"
    segments.mkdir()
    cache = HostCache(segments, 4 << 30)
    with Peak() as peak, StageRing("bench") as ring:
        begin = time.perf_counter()
        draft = cache.draft(identity(layout), layout.weight_bytes)
        assert draft is not None
        content = fill(directory, layout, [target, draft.view], ring)
        image = cache.publish(draft, content)
        rate = layout.weight_bytes / (time.perf_counter() - begin)
    begin = time.perf_counter()
    again = HostCache(segments, 4 << 30).find(identity(layout), layout.weight_bytes)
    took = time.perf_counter() - begin
    assert again is not None
    image.close()
    again.close()
    return [
        Row("load: cold, hashed, into slabs and host cache", rate / 1e9, "GB/s"),
        Row("load: its memory beyond both", (peak.most_bytes - peak.first_bytes) / 1e6, "MB", 300, "<="),
        Row("load: a restarted sidecar finds 2 GB in the cache", took * 1e3, "ms"),
    ]


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="aegaeon-bench-") as disk,
        tempfile.TemporaryDirectory(prefix="aegaeon-bench-", dir="/dev/shm") as shm,
    ):
        directory = Path(disk) / "model"
        layout = write_model(directory)
        slabs = -(-layout.weight_bytes // SLAB)
        pool = SlabPool.private("bench", SLAB, slabs)
        weights = Range(pool, slabs)
        weights.map(0, pool.take(slabs))
        target = weights.view(0, layout.weight_bytes)
        target[:] = 0  # every page is there, as after the first model that a slab held
        print(f"a model of {layout.weight_bytes / 1e9:.2f} GB")
        rows = sizes(directory, layout, target) + cold(Path(shm), directory, layout, target)
        weights.close()
    return not report("load", rows)


if __name__ == "__main__":
    sys.exit(main())
