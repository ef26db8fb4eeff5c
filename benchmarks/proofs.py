"""What admission by proof costs: every tiny family, and a model of 1 GB beside another that is decoded meanwhile.

In vLLM's environment, with OMP_NUM_THREADS=1: `make bench-vllm`. CPU seconds of the process, since other processes of
the machine change the others; decodes have a token due every 100 ms, which is the objective of the paper's evaluation.
A proof is the first of its shell, as each is that is made. The load that it is held against is what brings a model into
the host cache: its description, reading its files, hashing and placing them. The copy to the device, which follows at
every switch, is not counted.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from backend_vllm.families import BASE, FAMILIES, HEAD, save
from benchmarks.report import BARS_MISSED, Row, report

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import configure_threads
from aegaeon_sidecar.backends.vllm import open_backend
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.ring import StageRing

TINY_S, SHARE, DUE_S = 0.5, 0.05, 0.1
BIG = BASE | {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 5, "vocab_size": 8192,
              "num_attention_heads": 32, "num_key_value_heads": 8, "initializer_range": 0.02}  # fmt: skip
MEASURED = 5  # proofs of which the median counts


def main() -> int:
    """All figures, written to benchmarks/results/proofs.json."""
    configure_threads(1)
    backend = open_backend(device="cpu", ranks=1, dtype="float32")
    with TemporaryDirectory() as disk, TemporaryDirectory(dir="/dev/shm") as memory:
        rows = [*tiny(backend, Path(memory)), *large(backend, Path(disk), Path(memory))]
    return 0 if report("proofs", rows) else BARS_MISSED


def tiny(backend: Any, folder: Path) -> Iterator[Row]:
    """The proof of each family beyond its description."""
    costs: dict[str, float] = {}
    for name, (kind, settings, _) in FAMILIES.items():
        directory = save(kind, settings, folder / name, "float32")
        backend.describe(directory, 0).proof.run()  # what is imported and allocated once
        layout = backend.describe(directory, 0)
        costs[name] = cpu_s(layout.proof.run)
    slowest = max(costs, key=costs.__getitem__)
    yield Row(f"proof of a tiny model, the slowest of {len(costs)} ({slowest})", costs[slowest], "CPU s", TINY_S, "<=")
    yield Row("proof of a tiny model, the median", float(np.median(list(costs.values()))), "CPU s")


def large(backend: Any, folder: Path, memory: Path) -> Iterator[Row]:
    """A model of 1 GB: its proof beside its load, and what its neighbour notices."""
    neighbour = Served(backend, save("LlamaConfig", BASE | HEAD, memory / "neighbour", "float32"))
    directory = save("LlamaConfig", BIG, folder / "big", "float32")
    leave_page_cache(directory)
    with neighbour.decoding() as before:
        time.sleep(2.0)
    with neighbour.decoding() as during:
        begin, began = time.process_time() - neighbour.cpu_s, time.monotonic()
        layout = backend.describe(directory, 0)
        image(directory, layout, memory / "image")
        load_s, load_wall_s = time.process_time() - neighbour.cpu_s - begin, time.monotonic() - began
    with neighbour.decoding() as beside:
        proofs = [backend.describe(directory, 0).proof.run for _ in range(MEASURED)]
        began = time.monotonic()
        proof_s = float(np.median([cpu_s(run) for run in proofs]))
        proof_wall_s = (time.monotonic() - began) / MEASURED
    yield Row("load of a model of 1 GB, without its proof", load_s, "CPU s")
    yield Row("its proof beside its load", proof_s, "CPU s", load_s, "<=", SHARE)
    yield Row("load of a model of 1 GB from a disk, without its proof", load_wall_s, "s")
    yield Row("its proof beside its load from a disk", proof_wall_s, "s", load_wall_s, "<=", SHARE)
    yield Row("longest token of another model, alone", 1000 * max(before), "ms")
    yield Row("longest token of another model, beside the load", 1000 * max(during), "ms")
    yield Row("longest token of another model, beside the proof", 1000 * max(beside), "ms", 1000 * DUE_S, "<=")


def cpu_s(run: Any) -> float:
    """CPU seconds of this thread, which computes all of it."""
    begin = time.thread_time()
    run()
    return time.thread_time() - begin


def leave_page_cache(directory: Path) -> None:
    """The files are read from the disk next."""
    for path in directory.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def image(directory: Path, layout: Any, path: Path) -> None:
    """What the host cache holds of it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.truncate(file, layout.image_bytes)
        fill(look(directory, layout), [], StageRing(), into_file=file)
    finally:
        os.close(file)


class Served:
    """A model that threads decode, a token every 20 ms."""

    def __init__(self, backend: Any, directory: Path) -> None:
        self._backend, layout = backend, backend.describe(directory, 0)
        self.cpu_s = 0.0  # that its decodes have taken
        path = directory / "image"
        image(directory, layout, path)
        self._weights = np.fromfile(path, dtype=np.uint8)
        backend.register("neighbour", directory, layout, self._weights)
        self._kv = np.zeros(16 * layout.kv_block_bytes, dtype=np.uint8)
        backend.bind_kv(layout.kv_shape, self._kv)

    @contextmanager
    def decoding(self) -> Iterator[list[float]]:
        """Yields the seconds from when each token may begin to when it is there."""
        taken: list[float] = []
        stop = threading.Event()
        thread = threading.Thread(target=self._decode, args=(stop, taken))
        thread.start()
        try:
            yield taken
        finally:
            stop.set()
            thread.join()

    def _decode(self, stop: threading.Event, taken: list[float]) -> None:
        blocks, before_s = np.arange(16, dtype=np.int32), self.cpu_s
        for position in range(10**6):
            if stop.wait(0.02):
                return
            begin = time.perf_counter()
            part = StepInput([5 + position % 40], position % 500, blocks, None)
            self._backend.logits("neighbour", [part])
            taken.append(time.perf_counter() - begin)
            self.cpu_s = before_s + time.thread_time()


if __name__ == "__main__":
    sys.exit(main())
