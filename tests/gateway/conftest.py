"""A gateway in this process with its peer (peer.py). Everything runs over real HTTP and real gRPC."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway.forks import forking_starter, working
from gateway.peer import Peer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from aegaeon_gateway.config import GatewayConfig, HttpLimits
from aegaeon_gateway.run import Served, serve
from aegaeon_gateway.workers.pool import WorkerPool
from aegaeon_gateway.workers.supervisor import Starter, Stopped
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import model_pb2

TEXT = "Größe 🙂, 数字 and the quick brown fox; tokens are scheduled one by one."
EOS = 2
SPECIAL = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def model_status(
    name: str, directory: Path, phase: model_pb2.ModelPhase.ValueType = model_pb2.MODEL_PHASE_CACHED, reason: str = ""
) -> pb.ModelStatus:
    return pb.ModelStatus(
        spec=model_pb2.ModelSpec(
            name=name, source=model_pb2.ModelSource(directory=str(directory)), ttft_s=10.0, tbt_s=1.0
        ),
        phase=phase,
        reason=reason,
        footprint=model_pb2.Footprint(max_model_len=256),
    )


@dataclass
class Pool:
    """A gateway and its peer."""

    peer: Peer
    served: Served
    http: aiohttp.ClientSession
    tokenizer: Tokenizer
    directory: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.served.port}"

    async def metrics(self) -> str:
        """What Prometheus reads, on the socket for metrics."""
        connector = aiohttp.UnixConnector(str(self.peer.sockets / "metrics.sock"))
        async with aiohttp.ClientSession(connector=connector) as http, http.get("http://gateway/metrics") as response:
            assert response.status == 200
            return await response.text()

    async def raw(self, *pieces: bytes, half_close: bool = False) -> bytes:
        """Send bytes, read until the gateway closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.served.port)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if half_close:
            writer.write_eof()
        try:
            return await reader.read()
        finally:
            writer.close()

    async def until_models(self, condition: Callable[[dict[str, pb.ModelStatus]], bool]) -> None:
        """Wait until the gateway's model catalog meets the condition."""
        catalog = self.served.catalog
        async with asyncio.timeout(20):
            while not (catalog.known and condition({model.spec.name: model for model in catalog.models()})):
                await catalog.changed()

    async def until_loaded(self, name: str) -> None:
        """Wait until the workers can take requests of a model."""
        await self.until_models(lambda models: name in models)
        await self.served.texts.get(self.served.catalog.get(name).spec.source)

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, dict[str, Any], Any]:
        """Status, body and headers."""
        async with self.http.post(self.url + path, json=body, **options) as response:
            return response.status, await response.json(), response.headers

    async def chat(self, **body: Any) -> tuple[int, dict[str, Any], Any]:
        return await self.post("/v1/chat/completions", {"model": "tiny", "messages": [HI], **body})

    async def complete(self, **body: Any) -> tuple[int, dict[str, Any], Any]:
        return await self.post("/v1/completions", {"model": "tiny", "prompt": "hi", "max_tokens": 200, **body})


StartGateway = Callable[..., Any]
HI = {"role": "user", "content": "hi"}


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model that a gateway reads: no weights, so no time spent on making some."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=384, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT, "Say something else about the quick dogs."] * 2, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 256}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return directory


@pytest.fixture
def own_model(model_directory: Path, tmp_path: Path) -> Path:
    """A copy of these files that a test may change."""
    return Path(shutil.copytree(model_directory, tmp_path / "model"))


@pytest.fixture(scope="session")
def tokenizer(model_directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model_directory / "tokenizer.json"))


def gateway_config(peer: Peer, **changes: Any) -> dict[str, Any]:
    return {
        "name": "gw",
        "listen": "127.0.0.1:0",
        "scheduler": peer.target,
        "sink": peer.sink,
        "max_body_bytes": 100_000,
        "hold_s": 60.0,
        "drain_s": 5.0,
        "worker_cpu_s": 1.0,
        **changes,
    }


@pytest.fixture
async def peer(sockets: Path, model_directory: Path, tokenizer: Tokenizer) -> AsyncIterator[Peer]:
    output = [*tokenizer.encode(TEXT).ids, EOS]
    peer = Peer(sockets, [model_status("tiny", model_directory)], lambda submit, choice: output)
    await peer.start()
    yield peer
    await peer.stop()


@pytest.fixture(scope="session")
def start_workers() -> Iterator[Starter]:
    """Starts fork servers as forks of one process, so that transformers is imported once."""
    with forking_starter() as start:
        yield start


@pytest.fixture
async def workers(start_workers: Starter) -> AsyncIterator[WorkerPool]:
    async with working(start_workers) as workers:
        yield workers


@pytest.fixture
async def recorded(start_workers: Starter) -> AsyncIterator[tuple[WorkerPool, list[socket.socket]]]:
    """Workers, and a duplicate of the socket of every fork server that they have started."""
    ends: list[socket.socket] = []

    async def start(sock: socket.socket) -> Stopped:
        ends.append(sock.dup())
        await asyncio.sleep(0)  # as for a program: others may ask for workers meanwhile
        return await start_workers(sock)

    async with working(start) as workers:
        yield workers, ends
    for end in ends:
        end.close()


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> HttpLimits:
    """Bounds of connections; a test that wants others parametrizes this fixture indirectly."""
    return HttpLimits(**getattr(request, "param", {}))


STRICT = pytest.mark.strict  # of a test whose gateway refuses what has no effect


@pytest.fixture
def start_gateway(peer: Peer, tokenizer: Tokenizer, model_directory: Path, start_workers: Starter) -> StartGateway:
    """`async with start_gateway(**settings) as pool`: a gateway with metrics on a socket beside its peer's."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Pool]:
        pages = {"metrics_listen": f"unix:{peer.sockets}/metrics.sock"}
        config = GatewayConfig(**gateway_config(peer, **pages | settings))
        async with serve(config, start_workers) as served, aiohttp.ClientSession() as http:
            yield Pool(peer, served, http, tokenizer, model_directory)

    return start


@pytest.fixture
async def pool(request: Any, limits: HttpLimits, start_gateway: StartGateway) -> AsyncIterator[Pool]:
    strict = request.node.get_closest_marker("strict") is not None
    async with start_gateway(http=limits, strict=strict) as pool:
        served = pool.served
        yield pool
        async with asyncio.timeout(60):  # fails where open requests are left behind
            while len(served.open):  # noqa: ASYNC110 - the last byte of an answer is out before its request is over
                await asyncio.sleep(0)
    served.intake.check()
