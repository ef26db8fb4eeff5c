"""Forced switches of many families of models that vLLM executes, every output held against the model run alone.

Two pools of real processes, one after the other, two adapters of one model beside the models. In float32: greedy
outputs against transformers, position by position. In bfloat16, where transformers rounds elsewhere, and seeded in
both: against the same requests alone on an idle pool, and greedy outputs of one prompt against each other.
In vLLM's environment: `make bench-vllm`.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from backend_vllm.adapters import make_adapter, merge
from backend_vllm.families import FAMILIES, quantise, save
from benchmarks.exactness import OBJECTIVE, OUTPUTS, SMALL, judge, switches_reach
from benchmarks.random_traffic import Client, Deck, Load, Output
from benchmarks.report import Row, read_settings, report

from aegaeon_cli.demo.stack import Stack, free_port
from aegaeon_cli.models import make_models, questions

POOLS = {"float32": ("gemma", "phi3", "gptoss", "mixtral", "qwen3"), "bfloat16": ("gptq", "awq", "qwen3")}
QUANTISED = ("gptq", "awq")
BASE = "qwen3"  # of each pool, with two adapters
ADAPTERS = ("poet", "lawyer")
TOKENIZER = "llama"  # whose tokenizer, and what it was trained to answer, all of them get
TEXT = {"vocab_size": 2048, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 1024}
SLOTS = "2Mi"  # of a device's memory: for both adapters
TIE = 1e-3  # logits of random models are ten times those of trained ones


def make(folder: Path, dtype: str, made: Path) -> dict[str, Path]:
    """The models of a pool by name, with a tokenizer of `made`."""
    models = {}
    for name in POOLS[dtype]:
        kind, settings, _ = FAMILIES["llama" if name in QUANTISED else name]
        directory = save(kind, settings | TEXT, folder / dtype / f"{name}-plain", dtype)
        if name in QUANTISED:
            directory = quantise(name, directory, folder / dtype / name)
        for file in (made / TOKENIZER).glob("tokenizer*"):
            shutil.copy(file, directory)
        models[name] = directory
    return models


def make_adapters(folder: Path, base: Path) -> dict[str, Path]:
    """Adapters of a model, by name."""
    return {name: make_adapter(base, folder / "adapters" / name, seed=at) for at, name in enumerate(ADAPTERS)}


def merged(folder: Path, base: Path, adapters: dict[str, Path]) -> dict[str, Path]:
    """The models that requests for adapters are answered by: of the base's weights with these added."""
    return {name: merge(base, adapter, folder / "merged" / name) for name, adapter in adapters.items()}


@asynccontextmanager
async def small_stack(
    models: dict[str, Path], adapters: dict[str, Path], dtype: str, device: str
) -> AsyncIterator[Stack]:
    """Two engines that hold one or two of the models, short turns, everything due at once. Leaves nothing behind."""
    pool = {
        "backend": "vllm",
        "accelerator": {"device": "cpu", "dtype": dtype},
        "engines": {"replicas": 2},
        "memory": SMALL | {"deviceBytes": device},
        "adapters": {"maxRank": 8, "maxLoaded": 2, "memory": SLOTS},
        "scheduling": {"qMax": "5ms", "minStay": "1ms", "maxGroupSize": 8, "hold": "60s"},
    }
    served = [{**_served(name, path), "slo": OBJECTIVE} for name, path in sorted(models.items())]
    next(one for one in served if one["name"] == BASE)["adapters"] = [_served(*named) for named in adapters.items()]
    with tempfile.TemporaryDirectory() as folder:
        manifests = [
            _manifest("GpuPool", pool),
            _manifest("ModelPool", {"gpuPoolRef": {"name": "x"}, "models": served}),
        ]
        (Path(folder) / "pool.yaml").write_text(yaml.safe_dump_all(manifests))
        async with Stack(Path(folder), port=free_port()) as stack:
            yield stack
    if stack.leftovers:
        raise SystemExit("left behind: " + "; ".join(stack.leftovers))


def _served(name: str, directory: Path) -> dict[str, Any]:
    return {"name": name, "source": {"hostPath": str(directory)}}


def _manifest(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "serving.aegaeon.io/v1alpha1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def traffic_rows(wanted: int, switched: int, outputs: Sequence[Output]) -> list[Row]:
    """Of everything that was asked under load."""
    return [
        Row("switches", switched, "switches", wanted),
        Row("outputs", len(outputs), "outputs"),
        Row("requests that failed", sum(bool(output.error) for output in outputs), "requests", 0, "<="),
    ]


def judged_rows(outputs: Sequence[Output], models: dict[str, Path]) -> list[Row]:
    """Of greedy outputs in float32, beside transformers."""
    print(f"{len(outputs)} outputs against transformers", flush=True)
    judged = judge(outputs, models, TIE)
    for output, verdict in judged:
        if not verdict.identical:
            print(f"different: {output.request.model}, token {verdict.first_difference}, {verdict.gap:.3g} behind")
    verdicts = [verdict for _, verdict in judged]
    return [
        Row("positions beside transformers", sum(verdict.positions for verdict in verdicts), "tokens"),
        Row(f"ties closer than {TIE:g}", sum(verdict.ties for verdict in verdicts), "tokens"),
        Row("outputs not identical to transformers", sum(not v.identical for v in verdicts), "outputs", 0, "<="),
    ]


def other_rows(outputs: Sequence[Output]) -> list[Row]:
    """Of greedy outputs: those of one prompt are equal as far as the shorter one goes."""
    longest: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for output in sorted(outputs, key=lambda output: -len(output.tokens)):
        longest.setdefault((output.request.model, output.request.prompt), output.tokens)
    known = [longest[output.request.model, output.request.prompt] for output in outputs]
    compared = sum(whole is not output.tokens for whole, output in zip(known, outputs, strict=True))
    other = sum(whole[: len(output.tokens)] != output.tokens for whole, output in zip(known, outputs, strict=True))
    return [
        Row("outputs beside a longer one of the same prompt", compared, "outputs"),
        Row("of which the tokens differ", other, "outputs", 0, "<="),
    ]


def alone_rows(pairs: Sequence[tuple[Output, Output]]) -> list[Row]:
    """Of requests that ran alone and under load."""
    failed = sum(bool(alone.error or loaded.error) for alone, loaded in pairs)
    different = sum(alone.tokens != loaded.tokens for alone, loaded in pairs)
    return [
        Row("requests alone and under load", len(pairs), "requests"),
        Row("of which failed", failed, "requests", 0, "<="),
        Row("of which the tokens differ", different, "requests", 0, "<="),
    ]


async def measure(dtype: str, folder: Path, models: dict[str, Path], arguments: argparse.Namespace) -> list[Row]:
    """One pool: greedy under load until there are enough switches, then what is compared with itself alone."""
    known = questions(arguments.models)[TOKENIZER]
    adapters = make_adapters(folder, models[BASE])
    asked_for = models | merged(folder, models[BASE], adapters)
    deck = Deck(asked_for, dict.fromkeys(asked_for, known), arguments.seed)
    async with small_stack(models, adapters, dtype, arguments.device_bytes) as stack, Client(stack.state.url) as client:
        asked = [deck.draw_seeded() for _ in range(arguments.compared)]
        asked += [replace(deck.draw(), leave_after=None) for _ in range(arguments.compared)]
        load = Load(client, deck, arguments.width)
        alone = [await client.ask(request) for request in asked]
        async with load.running():
            again = asyncio.gather(*(client.ask(request) for request in asked))
            switched = await switches_reach(
                stack.state.scheduler, arguments.switches, lambda: len(load.outputs) >= OUTPUTS, arguments.limit_s
            )
            loaded = await again
    found = [*traffic_rows(arguments.switches, switched, load.outputs), *other_rows(load.outputs)]
    if dtype == "float32":
        found += judged_rows([output for output in load.outputs if output.tokens], asked_for)
    with_adapter = [output for output in load.outputs if output.request.model in adapters and output.tokens]
    found.append(Row("outputs of adapters", len(with_adapter), "outputs", 1))
    pairs = list(zip(alone, loaded, strict=True))
    return [replace(row, figure=f"{dtype}: {row.figure}") for row in [*found, *alone_rows(pairs)]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switches", type=int, default=10_000, help="of the engines of each pool to wait for")
    parser.add_argument("--models", type=Path, required=True, help="folder of `aegaeon models make`")
    parser.add_argument("--dtypes", nargs="+", choices=tuple(POOLS), default=tuple(POOLS), help="which pools")
    parser.add_argument("--compared", type=int, default=24, help="requests of each kind to compare with themselves")
    parser.add_argument("--width", type=int, default=16, help="requests that are open at a time")
    parser.add_argument(
        "--device-bytes",
        default="11Mi",
        help="of each engine; slots of adapters take 2 MiB of it, a model takes 2 to 6 MiB",
    )
    parser.add_argument("--limit-s", type=float, default=1800.0, help="give up waiting after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    arguments = read_settings(parser)
    arguments.models = arguments.models.absolute()
    make_models(arguments.models, print)
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype in arguments.dtypes:
            models = make(Path(folder), dtype, arguments.models)
            found += asyncio.run(measure(dtype, Path(folder) / dtype, models, arguments))
    sys.exit(0 if report("vllm_switches", found, arguments.short) else 1)


if __name__ == "__main__":
    main()
