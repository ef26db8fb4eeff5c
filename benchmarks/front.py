"""Our gateway beside the front-end of vLLM's own server: what a streamed token costs, what each adds to its latency.

Both run with an engine that computes nothing, in turn, for the same clients, loads and tokenizer. To vLLM's server this
process is an external engine: it speaks the messages between vLLM's front-end and its EngineCore. `make bench-vllm`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from benchmarks.gateway import running
from benchmarks.report import Row, report
from benchmarks.streams import FIRST, STEPS, Load, Plateau, measure, measure_direct, write_model
from benchmarks.vllm_peer import ENVIRONMENT as EAGER

from aegaeon_cli.demo import clients

CHAT = Load(32, 100, "chat/completions")
COMPLETIONS = Load(32, 100)
LATENCY = Load(32, 50, "chat/completions")
MEMORY = Load(100, 30, "chat/completions")
LOADS = (CHAT, COMPLETIONS, LATENCY) * 2 + (MEMORY,)
WARM_UP = Load(8, 200, "chat/completions")
_ADD, _UTILITY, _LENGTH = b"\x00", b"\x03", 1  # vllm.v1.engine: EngineCoreRequestType, FinishReason
_IDENTITY = (0).to_bytes(2, "little")  # of the first engine
_STARTS_S = 180
_ENVIRONMENT = {**os.environ, **EAGER, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": FIRST + STEPS + 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": STEPS + 64,
}


@dataclass
class ExternalEngine:
    """An EngineCore that gives every request of vLLM's front-end the same tokens."""

    opened: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    _context: zmq.asyncio.Context = field(default_factory=zmq.asyncio.Context)
    _out: Any = None

    async def run(self, port: int) -> None:
        """Introduce itself to the front-end, then take what it sends."""
        greeting = self._socket(f"tcp://127.0.0.1:{port}", zmq.DEALER)
        await greeting.send(_packed({"status": "HELLO", "local": False, "headless": True}))
        addresses = msgspec.msgpack.decode(await greeting.recv())["addresses"]
        self._out = self._socket(addresses["outputs"][0], zmq.PUSH)
        inputs = self._socket(addresses["inputs"][0], zmq.DEALER)
        await inputs.send(b"")
        await greeting.send(_packed({"status": "READY", "local": False, "headless": True}))
        while True:
            kind, message, *_ = await inputs.recv_multipart()
            if kind == _ADD:
                self.opened.put_nowait(msgspec.msgpack.decode(message)[0])
            elif kind == _UTILITY:
                _, call, method, _ = msgspec.msgpack.decode(message)
                result = ["generate"] if method == "get_supported_tasks" else None
                await self._out.send(_packed([0, [], None, 0.0, [call, None, [None, result]]]))

    async def push(self, requests: list[str], step: int) -> None:
        """One step of the engine: EngineCoreOutputs."""
        end = [None, None, None, _LENGTH] if step == STEPS - 1 else []
        await self._out.send(_packed([0, [[request, [FIRST + step], *end] for request in requests]]))

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _socket(self, address: str, kind: int) -> Any:
        made = self._context.socket(kind)
        made.setsockopt(zmq.IDENTITY, _IDENTITY)
        made.connect(address)
        return made


def _packed(message: Any) -> bytes:
    return msgspec.msgpack.encode(message)


@asynccontextmanager
async def vllm_running(folder: Path) -> AsyncIterator[Callable[[Load], Any]]:
    """vLLM's server for the model in the folder; yields what measures it."""
    (folder / "config.json").write_text(json.dumps(_MODEL))
    port, engine_port = free_ports(2)
    settings = {
        "served-model-name": "bench",
        "host": "127.0.0.1",
        "port": port,
        "max-model-len": STEPS + 64,
        "dtype": "float32",
        "data-parallel-size": 1,
        "data-parallel-size-local": 0,
        "data-parallel-address": "127.0.0.1",
        "data-parallel-rpc-port": engine_port,
    }
    arguments = [f"--{name}={value}" for name, value in settings.items()]
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--disable-uvicorn-access-log"),
        *(f"--model={folder}", *arguments),
        env=_ENVIRONMENT,
    )
    engine = ExternalEngine()
    serving = asyncio.create_task(engine.run(engine_port))
    try:
        async with asyncio.timeout(_STARTS_S):
            await answers(server, port)
        yield lambda load: measure(engine, port, server.pid, load)
    finally:
        if server.returncode is None:
            server.terminate()
            await server.wait()
        serving.cancel()
        engine.close()


def free_ports(number: int) -> list[int]:
    """Of the loopback interface, as the kernel gives them."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


async def answers(server: asyncio.subprocess.Process, port: int) -> None:
    """Until the server says that it is healthy. Raises RuntimeError when it has ended."""
    while server.returncode is None:
        try:
            await asyncio.to_thread(clients.page, f"http://127.0.0.1:{port}/health", 5)
        except (urllib.error.URLError, ConnectionError):
            await asyncio.sleep(0.5)
        else:
            return
    raise RuntimeError("vLLM's server ended before it answered")


async def bench(folder: Path) -> list[Row]:
    """Both front-ends under every load, in turn."""
    write_model(folder)
    direct_ms: list[float] = []
    ours: list[Plateau] = []
    theirs: list[Plateau] = []
    async with running(folder) as gateway, vllm_running(folder) as vllm:
        for measured in (gateway.measure, vllm):
            await measured(WARM_UP)
        for load in LOADS:
            if load == LATENCY:
                direct_ms.append(await measure_direct(load))
            ours.append(await gateway.measure(load))
            theirs.append(await vllm(load))
    return list(rows_of(ours, theirs, statistics.mean(direct_ms)))


def rows_of(ours: Sequence[Plateau], theirs: Sequence[Plateau], direct_ms: float) -> Iterator[Row]:
    """Each figure is the mean of all rounds."""
    for load, threshold in ((CHAT, 1.5), (COMPLETIONS, 1.5)):
        at = f"{load.endpoint}, {load.streams * load.rate:g} tokens/s"
        mine, peer = (mean(side, load, lambda one: one.tokens_s_core) for side in (ours, theirs))
        yield Row(f"tokens per second and core / vLLM's, {at}", mine, "tokens/s", peer, ">=", threshold)
    at = f"{LATENCY.streams} streams, {LATENCY.streams * LATENCY.rate:g} tokens/s"
    mine, peer = (mean(side, LATENCY, lambda one: one.p50_ms) - direct_ms for side in (ours, theirs))
    yield Row(f"added latency p50, {at}", mine, "ms", 1, "<=")
    yield Row(f"added latency p50 of vLLM's, {at}", peer, "ms")
    mine, peer = (mean(side, LATENCY, lambda one: one.p99_ms) - direct_ms for side in (ours, theirs))
    yield Row(f"added latency p99 / vLLM's, {at}", mine, "ms", peer, "<=")
    mine, peer = (mean(side, MEMORY, lambda one: one.stream_bytes) / 1024 for side in (ours, theirs))
    yield Row(f"memory per stream / vLLM's, {MEMORY.streams} streams", mine, "KiB", peer, "<=")


def mean(side: Sequence[Plateau], load: Load, figure: Callable[[Plateau], float]) -> float:
    return statistics.mean(figure(one) for one in side if one.load == load)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="aegaeon-front-") as folder:
        return 0 if report("front", asyncio.run(bench(Path(folder)))) else 1


if __name__ == "__main__":
    sys.exit(main())
