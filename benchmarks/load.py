"""Loads from disk through the stage ring, against dd with the same pattern; the ring's size; what a cold load needs.

dd reads past the page cache in blocks of one chunk: alone, and as many at a time as the ring has readers. The faster of
both is the limit. A load does that and copies into slabs as well, so memcpy measured in the same run stands beside it.
A first load also takes new memory, whose price is the machine's (a hypervisor that takes back what is free makes it the
dearest part). So dd from disk to a new file where the host cache is stands beside it too.
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
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.report import Row, report
from numpy.typing import NDArray

from aegaeon_native import Range, SlabPool
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.layout import lay_out
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.models.tensors import tensor_shapes
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.image import Image
from aegaeon_sidecar.weights.ring import CHUNK_BYTES, DEPTH, READERS, StageRing

SLAB = 32 << 20
ROUNDS = 5
GRID = [(1, 8, 2), (2, 8, 2), (4, 4, 1), (4, 4, 2), (4, 4, 4), (4, 8, 2), (8, 4, 2), (16, 2, 2)]  # MiB, slots, readers
FIRST = "load: from disk for the first time, hashed, into slabs and host cache"
DD_NOWHERE = "load: dd from disk to nowhere"
DD_NEW = "load: dd from disk to a new file of the host cache's file system"
CHOSEN = (CHUNK_BYTES >> 20, DEPTH, READERS)
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


def write_model(directory: Path, config: Mapping[str, Any] = CONFIG) -> Layout:
    """Random float32 in one file, with CONFIG about 2 GB."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
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
    return lay_out(directory, 0, "float32", 16)


def dd(file: Path, readers: int, to: Path | None = None) -> float:
    """Bytes per second of reading the file, a part of it by each reader, in chunks, into a new file or to nowhere."""
    size = file.stat().st_size
    count = -(-size // (CHUNK_BYTES * readers))
    command = ["dd", f"if={file}", f"of={to or '/dev/null'}", f"bs={CHUNK_BYTES}", "iflag=direct", "conv=notrunc"]
    parts = [[*command, f"count={count}", f"skip={i * count}", f"seek={i * count}"] for i in range(readers)]
    begin = time.perf_counter()
    running = [subprocess.Popen(part, stderr=subprocess.DEVNULL) for part in parts]
    if {process.wait() for process in running} != {0}:
        raise RuntimeError(f"{' '.join(command)} failed; run it by hand")
    return size / (time.perf_counter() - begin)


def dd_into_new_memory(shm: Path, file: Path, readers: int) -> float:
    """Bytes per second from disk into a file that is made, where the host cache is, and goes again."""
    with tempfile.TemporaryDirectory(dir=shm) as folder:
        return dd(file, readers, Path(folder) / "image")


def load(directory: Path, layout: Layout, ring: StageRing, *targets: NDArray[np.uint8], on_device: int = 0) -> float:
    """Bytes per second of a load from disk into slabs: of host memory, or of the ring's GPU from this address on."""
    files = look(directory, layout)
    begin = time.perf_counter()
    fill(files, targets, ring, on_device=on_device, hashed=False)
    return layout.weight_bytes / (time.perf_counter() - begin)


def first_load(folder: Path, directory: Path, layout: Layout, target: NDArray[np.uint8]) -> tuple[float, Image]:
    """Of a model that was never read: bytes per second into the slabs and, hashed on the way, into a new host cache."""
    begin = time.perf_counter()
    cache = HostCache(folder, 4 << 30)
    files = look(directory, layout)
    draft = cache.draft(files.identity, layout.weight_bytes)
    assert draft is not None
    image = cache.complete(draft, lambda file: fill(files, [target], StageRing(), into_file=file))
    return layout.weight_bytes / (time.perf_counter() - begin), image


def rate_of_first_load(shm: Path, directory: Path, layout: Layout, target: NDArray[np.uint8]) -> float:
    """Into a cache that goes with it."""
    with tempfile.TemporaryDirectory(dir=shm) as folder:
        rate, image = first_load(Path(folder), directory, layout, target)
        image.close()
    return rate


def sizes(shm: Path, directory: Path, layout: Layout, target: NDArray[np.uint8]) -> list[Row]:
    """The grid that the ring was chosen from and dd, turn by turn; the chosen one and a first load against dd."""
    rates: dict[str, list[float]] = defaultdict(list)
    source = np.ones_like(target)
    for _ in range(ROUNDS):
        for readers in {1, READERS}:
            rates[f"{DD_NOWHERE}, {readers} at a time"].append(dd(layout.files[0], readers))
            rates[f"{DD_NEW}, {readers} at a time"].append(dd_into_new_memory(shm, layout.files[0], readers))
        rates[FIRST].append(rate_of_first_load(shm, directory, layout, target))  # memory was freed before it, as for dd
        rates["load: memcpy into slabs"].append(copy_rate(target, source))
        for mib, depth, readers in GRID:
            ring = StageRing(mib << 20, depth, readers)
            rates[ring_name(mib, depth, readers)].append(load(directory, layout, ring, target))
        with BusyPython():
            rates["load: the chosen ring while Python computes"].append(load(directory, layout, StageRing(), target))
    middle = {name: statistics.median(seen) / 1e9 for name, seen in rates.items()}
    limit = max(rate for name, rate in middle.items() if name.startswith(DD_NOWHERE))
    chosen = Row("load: from disk, the chosen ring (limit: dd)", middle[ring_name(*CHOSEN)], "GB/s", limit, ">=", 0.9)
    new = max(rate for name, rate in middle.items() if name.startswith(DD_NEW))
    first = middle.pop(FIRST)
    firsts = [
        Row(f"{FIRST} (limit: dd)", first, "GB/s", limit, ">=", 0.9),
        Row(f"{FIRST} (limit: dd to a new file)", first, "GB/s", new, ">=", 0.9),
    ]
    return [chosen, *firsts, *(Row(name, rate, "GB/s") for name, rate in middle.items())]


def ring_name(mib: int, depth: int, readers: int) -> str:
    return f"load: ring of {depth} x {mib} MiB, {readers} readers"


def copy_rate(target: NDArray[np.uint8], source: NDArray[np.uint8]) -> float:
    begin = time.perf_counter()
    np.copyto(target, source)
    return target.nbytes / (time.perf_counter() - begin)


class BusyPython:
    """A thread that computes in Python, as the compute lane does between its kernels."""

    def __enter__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._spin)
        self._thread.start()

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join()

    def _spin(self) -> None:
        while not self._stop.is_set():
            pass


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


def memory(folder: Path, directory: Path, layout: Layout, target: NDArray[np.uint8]) -> list[Row]:
    """What a first load takes beyond slabs and host cache, and what a sidecar that starts anew needs to find it."""
    segments = folder / "segments"
    segments.mkdir()
    with Peak() as peak:
        _, image = first_load(segments, directory, layout, target)
    begin = time.perf_counter()
    again = HostCache(segments, 4 << 30).find(look(directory, layout).identity, layout.weight_bytes)
    took = time.perf_counter() - begin
    assert again is not None
    image.close()
    again.close()
    return [
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
        rows = sizes(Path(shm), directory, layout, target) + memory(Path(shm), directory, layout, target)
        weights.close()
    return not report("load", rows)


if __name__ == "__main__":
    sys.exit(main())
