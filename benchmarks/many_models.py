"""A tenant adds 512 models at once to an engine with vLLM that serves others: what it costs, and whom it delays.

In vLLM's environment, with OMP_NUM_THREADS=1 and PYTHONPATH=tests:. (`make bench-vllm`). The models share a tiny
architecture, and each has a config.json of its own, so that each has to be proved. Behind them another model is added
whose proof is known; a further one is decoded all the while.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from backend_vllm.families import BASE, HEAD, save
from benchmarks.proofs import DUE_S, Served
from benchmarks.report import BARS_MISSED, Row, read_settings, report
from sidecar.rig import Link, config, inside, rig, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends.torch import configure_threads
from aegaeon_sidecar.backends.vllm import open_backend

PATIENCE_S = 600.0
WAIT_S = 1.0  # that the other model may take to be served


def main() -> int:
    """All figures, written to benchmarks/results/many_models.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=512, help="that the tenant adds")
    chosen = read_settings(parser)
    configure_threads(1)
    with TemporaryDirectory(dir="/dev/shm") as memory:
        rows = asyncio.run(measured(open_backend(device="cpu", ranks=1, dtype="float32"), Path(memory), chosen.models))
    return 0 if report("many_models", rows, chosen.short) else BARS_MISSED


async def measured(backend: Any, folder: Path, count: int) -> list[Row]:
    """The rows."""
    known = save("LlamaConfig", BASE | HEAD, folder / "known", "float32")
    many = [variant(known, folder / f"many-{number}", number) for number in range(count)]
    neighbour = Served(backend, save("LlamaConfig", BASE | HEAD | {"num_hidden_layers": 3}, folder / "n", "float32"))
    settings = config(folder, memory={"device_bytes": 64 << 20, "host_cache_bytes": 2 << 30})
    async with rig(folder) as scheduler, inside(settings, backend):
        link = await scheduler.link("a")
        models = [spec("known", known)]
        await served(link, models)
        with neighbour.decoding() as before:
            await asyncio.sleep(3.0)
        begin, cpu = time.monotonic(), time.process_time() - neighbour.cpu_s
        with neighbour.decoding() as tokens:
            models += [spec(path.name, path) for path in many]
            link.send(pb.Catalog(models=models))
            await until(link, lambda: len(link.models) > count)
            late_s = await added(link, models, spec("late", known))
            await until(link, lambda: cached(link) == count + 2)
        all_s, cpu_s = time.monotonic() - begin, time.process_time() - neighbour.cpu_s - cpu
    proofs = count_proofs(folder)
    return [
        Row(f"{count} models of a tenant are served after", all_s, "s"),
        Row("processor time for each of them", 1000 * cpu_s / count, "CPU ms"),
        Row("proofs made, the first model's with them", proofs, "proofs"),
        Row("another model, added behind them, is served after", late_s, "s", WAIT_S, "<="),
        Row("longest token of another model, alone", 1000 * max(before), "ms"),
        Row("longest token of another model meanwhile", 1000 * max(tokens), "ms", 1000 * DUE_S, "<="),
    ]


def count_proofs(folder: Path) -> int:
    """That its sidecars have kept."""
    return sum(1 for _ in folder.rglob("*.proved"))


def variant(of: Path, directory: Path, number: int) -> Path:
    """The same weights with a config.json of its own."""
    directory.mkdir()
    os.link(of / "model.safetensors", directory / "model.safetensors")
    fields = json.loads((of / "config.json").read_text()) | {"max_position_embeddings": 512 + number}
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


async def added(link: Link, models: list[mpb.ModelSpec], another: mpb.ModelSpec) -> float:
    """Seconds until it is served."""
    begin = time.monotonic()
    await served(link, [*models, another])
    return time.monotonic() - begin


async def served(link: Link, models: list[mpb.ModelSpec]) -> None:
    """Until the last of them is."""
    link.send(pb.Catalog(models=models))
    last = models[-1].name
    await until(link, lambda: link.models.get(last, mpb.ModelState()).phase == mpb.MODEL_PHASE_CACHED)


async def until(link: Link, happened: Any) -> None:
    async with asyncio.timeout(PATIENCE_S), link.news:
        await link.news.wait_for(happened)


def cached(link: Link) -> int:
    """How many are served; a failed one is an error."""
    failed = [state.reason for state in link.models.values() if state.phase == mpb.MODEL_PHASE_FAILED]
    assert not failed, failed
    return sum(state.phase == mpb.MODEL_PHASE_CACHED for state in link.models.values())


if __name__ == "__main__":
    sys.exit(main())
