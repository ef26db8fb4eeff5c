"""An engine whose backend is vLLM, beside vLLM's own engine: tokens, what a step, a switch, a model cost beyond it.

In vLLM's environment: `make bench-vllm`, with OMP_NUM_THREADS=1. Both engines have one thread and are asked in
turn. CPU seconds are compared, since another process on the machine changes the others.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from backend_vllm.adapters import make_adapter
from benchmarks.report import Row, read_settings, report
from benchmarks.switch import in_shared_memory

from aegaeon_cli.bench.batch import MANY, MODEL, SLAB_BYTES
from aegaeon_cli.bench.testing.rig import OneEngine, make_model, one_engine
from aegaeon_proto.engine import commands
from aegaeon_proto.engine.ids import SeqId
from aegaeon_sidecar.backends import AdapterLimits
from aegaeon_sidecar.backends.vllm import open_backend
from aegaeon_sidecar.memory.outside import outside_bytes

DTYPE = "float32"
BATCHES = (8, 16)
PROMPT, NEW = 512, 64
ROUNDS = 2
STEPS = 64
SWITCHES = 6
ADAPTERS, RANK = 8, 8
SHORT = 32  # tokens of a prompt, where steps alone are compared
ADAPTER_ROUNDS = 2
FURTHER = 4  # models that are registered beside the two


def watched(adapters: AdapterLimits | None = None) -> Any:
    """A backend that notes what it takes: vLLM is imported here, by `open_backend`."""
    open_backend(device="cpu", ranks=1, dtype=DTYPE)
    from benchmarks.vllm_watched import Watched

    return Watched(dtype=DTYPE, adapters=adapters)


@asynccontextmanager
async def peer(directory: Path, *adapters: str) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "benchmarks.vllm_peer", str(directory), DTYPE, *adapters)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    try:
        while (line := await process.stdout.readline()).strip() != b"ready":
            if not line:
                raise SystemExit("vLLM's own engine did not start")
        yield process
    finally:
        process.kill()
        await process.wait()


async def theirs(
    process: asyncio.subprocess.Process, batch: int, prompt: int = PROMPT, new: int = NEW, adapters: int = 0
) -> float:
    """CPU seconds of a batch of vLLM's engine."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{batch} {prompt} {new} {adapters}\n".encode())
    return float((await process.stdout.readline()).split()[0])


async def ours(
    one: OneEngine, backend: Any, round_: str, batch: int, prompt: int = PROMPT, adapters: Sequence[str] = ()
) -> float:
    """CPU seconds of the same batch of ours, all threads."""
    began = time.process_time()
    seqs = await prompts(one, round_, batch, prompt, adapters)
    await one.outcome(one.send(commands.Turn(model="A", decode=tuple(seqs), steps=NEW - 1, slabs=MANY)))
    took = time.process_time() - began
    last = [launch.rows for launch in backend.launches[-NEW + 1 :]]
    assert last == [batch] * (NEW - 1), "a sequence is missing"
    close(one, seqs)
    return took


async def prompts(
    one: OneEngine, round_: str, batch: int, prompt: int = PROMPT, adapters: Sequence[str] = ()
) -> list[SeqId]:
    """So many sequences with their prompts computed, and one token of each. `adapters`: of each; empty: none."""
    tokens = [[(7 * i + k) % 1000 for k in range(prompt)] for i in range(batch)]
    named = zip(tokens, adapters or [""] * batch, strict=True)
    seqs = [one.open(f"{round_}-{i}", "A", some, adapter) for i, (some, adapter) in enumerate(named)]
    parts = tuple(commands.PrefillPart(seq=seq, tokens=prompt) for seq in seqs)
    await one.outcome(one.send(commands.Turn(model="A", prefill=parts, slabs=MANY)))
    return seqs


def close(one: OneEngine, seqs: Iterable[SeqId]) -> None:
    for seq in seqs:
        one.send(commands.Close(seq=seq, epoch=1))


async def speed(one: OneEngine, backend: Any, directory: Path) -> list[Row]:
    rows = []
    async with peer(directory) as process:
        for batch in BATCHES:
            pairs = [
                (await theirs(process, batch), await ours(one, backend, f"{batch}-{i}", batch)) for i in range(ROUNDS)
            ]
            peer_rate, rate = (batch * NEW / min(seconds) for seconds in zip(*pairs, strict=True))
            name = f"vllm: batch {batch}, prompts of {PROMPT} (limit: LLMEngine)"
            rows.append(Row(name, rate, "tokens/CPU s", peer_rate, ">=", 0.95))
    return rows


async def beyond(one: OneEngine, backend: Any) -> list[Row]:
    """From the begin of a decode to the begin of the next one, less the model and its logits: of the lane's thread."""
    seqs = await prompts(one, "beyond", 8)
    first = len(backend.launches)
    await one.outcome(one.send(commands.Turn(model="A", decode=tuple(seqs), steps=STEPS, slabs=MANY)))
    close(one, seqs)

    steps = list(pairwise(backend.launches[first:]))
    cpu = statistics.median(after.began_s - step.began_s - step.model_s for step, after in steps) * 1e3
    wall = statistics.median(after.began_wall_s - step.began_wall_s - step.model_wall_s for step, after in steps) * 1e3
    name = "vllm: a step beyond forward and logits, batch 8"
    return [Row(name, cpu, "CPU ms", 0.5, "<="), Row(f"{name}, by the wall's clock", wall, "ms")]


async def switches(one: OneEngine) -> list[Row]:
    """To and fro between two models: the copies of loads beside a memcpy of the same bytes."""
    copies, mapped = [], []
    for number in range(SWITCHES + 2):
        coming, leaving = ("B", "A") if number % 2 == 0 else ("A", "B")
        one.scrub()
        unload = one.send(commands.Unload(model=leaving))
        await one.outcome(one.send(commands.Load(model=coming, slabs=MANY), after=[unload]))
        await one.outcome(unload)
        model = one.engine.state.table.models[coming]
        assert model.range is not None
        assert model.image is not None
        began = time.perf_counter()
        ctypes.memmove(model.range.address, model.image.address, model.image.nbytes)
        if number >= 2:  # those before touch pages for the first time
            copies.append(model.copy_s / (time.perf_counter() - began))
            mapped.append(model.map_s * 1e3)
    middle = statistics.median
    return [
        Row("vllm: switch of 290 MB, its copy / memcpy in this run", middle(copies), "times", 1.0, "<=", 1.15),
        Row("vllm: switch of 290 MB, mapping beside it", middle(mapped), "ms"),
    ]


async def further(one: OneEngine, backend: Any, directories: dict[str, Path]) -> list[Row]:
    """Models that are added: of the first one's weights under other names, so that nothing but shells is new."""
    before, known = outside_bytes(), len(backend.shell_s)
    source = directories["A"]
    for number in range(FURTHER):
        directories[f"further-{number}"] = other = source.parent / f"further-{number}"
        other.mkdir()
        for file in source.iterdir():
            os.link(file, other / file.name)
    await one.serve(directories)
    each = (outside_bytes() - before) / FURTHER
    return [
        Row("vllm: shell of a further model", statistics.median(backend.shell_s[known:]) * 1e3, "CPU ms", 50, "<="),
        Row("vllm: memory beyond slabs, each further model", each / 2**20, "MiB", 64, "<="),
    ]


async def with_adapters(folder: Path, base: Path) -> list[Row]:
    """Batches of 8, each sequence with an adapter of its own, beside the same batches without: ours, then vLLM's."""
    names = [f"adapter-{number}" for number in range(ADAPTERS)]
    made = {name: make_adapter(base, folder / name, seed=at, rank=RANK) for at, name in enumerate(names)}
    limits = AdapterLimits(max_rank=RANK, slots=ADAPTERS, nbytes=1 << 28)
    memory: dict[str, Any] = {"device_bytes": 60 * SLAB_BYTES, "slab_bytes": SLAB_BYTES, "cache_bytes": 1 << 30}
    backend = watched(adapters=limits)
    (folder / "beside").mkdir()
    async with (
        one_engine(folder / "beside", **memory, backend=backend, max_batch=ADAPTERS) as one,
        peer(base, *map(str, made.values())) as process,
    ):
        await one.serve({"A": base}, {"A": made})
        await one.outcome(one.send(commands.Load(model="A", slabs=MANY)))
        pairs = []
        for number in range(ADAPTER_ROUNDS + 1):
            seconds = [await theirs(process, ADAPTERS, SHORT, NEW, some) for some in (0, ADAPTERS)]
            for some in ((), names):
                seconds += [await ours(one, backend, f"{number}-{len(some)}", ADAPTERS, SHORT, some)]
            pairs.append(seconds)
    plain, lora, own_plain, own_lora = (min(taken) for taken in zip(*pairs[1:], strict=True))  # the first loads them
    return [
        Row("vllm: batch of 8 adapters / none (limit: LLMEngine)", own_lora / own_plain, "times", lora / plain, "<="),
        Row("vllm: batch of 8 adapters, LLMEngine / ours", lora / own_lora, "times"),
    ]


FIGURES = ("beyond", "speed", "switches", "further", "adapters")


async def run(folder: Path, only: Sequence[str], short: bool) -> bool:
    """`only`: which of FIGURES."""
    directories = {name: make_model(folder / name, number, MODEL) for number, name in enumerate("AB")}
    backend = watched()
    memory: dict[str, Any] = {"device_bytes": 80 * SLAB_BYTES, "slab_bytes": SLAB_BYTES, "cache_bytes": 1 << 30}
    rows: list[Row] = []
    async with one_engine(folder, **memory, backend=backend, max_batch=max(BATCHES)) as one:
        await one.serve(directories)
        await one.outcome(one.send(commands.Load(model="A", slabs=MANY)))
        if "beyond" in only:
            rows += await beyond(one, backend)
        if "speed" in only:
            rows += await speed(one, backend, directories["A"])
        if "switches" in only:
            rows += await switches(one)
        if "further" in only:
            rows += await further(one, backend, directories)
    if "adapters" in only:
        rows += await with_adapters(folder, directories["A"])
    return report("vllm_engine", rows, short)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=FIGURES, help="these figures; default: all")
    chosen = read_settings(parser)
    return in_shared_memory(lambda folder: run(folder, chosen.only, chosen.short))


if __name__ == "__main__":
    sys.exit(main())
