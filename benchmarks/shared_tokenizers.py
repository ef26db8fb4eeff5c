"""Memory of a gateway that serves many models with few tokenizers, beside one that serves one model of each.

Every model has a folder and a configuration of its own; its tokenizer is one of ten with 128,000 tokens. Each is asked
twice. Counted is the memory of all processes of the gateway, pages that several have once, above that of a gateway
without models.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from benchmarks.gateway import listening_port
from benchmarks.report import Row, report
from benchmarks.streams import family
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from aegaeon_operator.podrunner import SocketFolder
from aegaeon_proto.servers import make_server
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import model_pb2
from aegaeon_proto.v1.gateway_pb2_grpc import FrontendServicer, add_FrontendServicer_to_server

TOKENS, TOKENIZERS, MODELS = 128_000, 10, 200
_SETTLED_S = 2.0  # workers of before a load end by themselves


class Catalog(FrontendServicer):
    """A scheduler that has nothing but models."""

    def __init__(self, folders: Sequence[Path]) -> None:
        specs = [
            model_pb2.ModelSpec(name=folder.name, source=model_pb2.ModelSource(directory=str(folder)))
            for folder in folders
        ]
        cached = model_pb2.MODEL_PHASE_CACHED
        self._status = pb.CatalogStatus(models=[pb.ModelStatus(spec=spec, phase=cached) for spec in specs])

    async def Serve(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # the stub is for sync servers as well
        async for message in request_iterator:
            if message.HasField("hello"):
                await context.write(pb.GatewayReply(catalog=self._status))


def write_tokenizer(directory: Path, seed: int) -> None:
    """Byte-level BPE: every token is two earlier ones, drawn from `seed`."""
    draw = random.Random(seed)
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    known, merges = set(pieces), []
    while len(pieces) < TOKENS:
        one, other = pieces[draw.randrange(min(len(pieces), 20_000))], pieces[draw.randrange(256)]
        if one + other not in known:
            known.add(one + other)
            pieces.append(one + other)
            merges.append((one, other))
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def write_models(folder: Path, count: int) -> list[Path]:
    """The first ones have a tokenizer each, the others one of these."""
    made = []
    for number in range(count):
        model = folder / f"m{number:03}"
        model.mkdir()
        if number < TOKENIZERS:
            write_tokenizer(model, number)
        else:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                (model / name).hardlink_to(folder / f"m{number % TOKENIZERS:03}" / name)
        config = {"model_type": "llama", "_name_or_path": model.name, "max_position_embeddings": 4096}
        (model / "config.json").write_text(json.dumps(config))
        made.append(model)
    return made


def memory_bytes(pid: int) -> int:
    """Of a process and all below it; of pages that several have, each counts its part."""
    rolled = (Path(f"/proc/{one}/smaps_rollup").read_text() for one in family(pid))
    return sum(int(line.split()[1]) << 10 for text in rolled for line in text.splitlines() if line.startswith("Pss:"))


async def measure(folder: Path, models: Sequence[Path]) -> tuple[int, float]:
    """Memory of a gateway that each of the models was asked of, and the seconds of one first request."""
    with SocketFolder.create() as sockets:
        scheduler, server = f"unix:{sockets.path}/scheduler", make_server()
        add_FrontendServicer_to_server(Catalog(models), server)
        server.add_insecure_port(scheduler)
        await server.start()
        config = {
            "name": "bench", "listen": "127.0.0.1:0", "scheduler": scheduler, "sink": f"unix:{sockets.path}/sink"
        }  # fmt: skip
        (folder / "gateway.json").write_text(json.dumps(config))
        arguments = ("-m", "aegaeon_gateway", "--config", str(folder / "gateway.json"))
        gateway = await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=asyncio.subprocess.PIPE)
        try:
            port, begin = await listening_port(gateway), time.monotonic()
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                await _ask(client, models)
                seconds = (time.monotonic() - begin) / max(len(models), 1)
                await _ask(client, models)  # none was lost meanwhile
            await asyncio.sleep(_SETTLED_S)
            return memory_bytes(gateway.pid), seconds
        finally:
            gateway.terminate()
            await gateway.communicate()
            await server.stop(grace=None)


async def _ask(client: aiohttp.ClientSession, models: Sequence[Path]) -> None:
    """Each of the models once. Raises RuntimeError."""
    for model in models:
        async with client.post("/tokenize", json={"model": model.name, "prompt": "abc"}) as answer:
            if answer.status != 200:
                raise RuntimeError(await answer.text())


async def bench(folder: Path, count: int) -> list[Row]:
    """Without models, with one of each tokenizer, with all."""
    models = write_models(folder, count)
    empty, _ = await measure(folder, [])
    few, first_s = await measure(folder, models[:TOKENIZERS])
    many, next_s = await measure(folder, models)
    above = f"memory of a gateway with {count} models of {TOKENIZERS} tokenizers above one without"
    return [
        Row(above, (many - empty) / 2**20, "MiB", (few - empty) / 2**20, "<=", 1.2),
        Row(f"the same with {TOKENIZERS} models", (few - empty) / 2**20, "MiB"),
        Row("first request of a model, its tokenizer not loaded yet", first_s, "s"),
        Row("first request of a model, over all", next_s, "s"),
    ]


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else MODELS
    with tempfile.TemporaryDirectory(prefix="aegaeon-tokenizers-") as folder:
        return 0 if report("shared_tokenizers", asyncio.run(bench(Path(folder), count)), count < MODELS) else 1


if __name__ == "__main__":
    sys.exit(main())
