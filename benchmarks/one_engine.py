"""One engine, driven directly: what the benchmarks of switching and of stepping share.

The scheduler's place is taken by `OneEngine`, the gateway's by a process of its own, which acknowledges every batch.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import torch

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import gateway_pb2, gateway_pb2_grpc
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends import Sampled, StepInput
from aegaeon_sidecar.backends.torch import TorchBackend, configure_threads
from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.engine import Engine
from aegaeon_sidecar.outbox import Outbox
from aegaeon_sidecar.sink import Sinks

PROMPT = [5, 17, 23, 42, 8, 99, 140, 7]


class TimedBackend(TorchBackend):
    """Notes the seconds of every forward pass, so that what is left of a turn is ours."""

    def __init__(self) -> None:
        super().__init__()
        self.steps_s: list[float] = []

    def step(self, model: str, inputs: Sequence[StepInput]) -> list[Sampled | None]:
        begin = time.perf_counter()
        results = super().step(model, inputs)
        self.steps_s.append(time.perf_counter() - begin)
        return results


class TimedOutbox(Outbox):
    """Notes when each turn ended, on the compute lane's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.ends: dict[int, float] = {}

    def post(self, report: pb.Report, attachment: int | None = None) -> None:
        if report.step_done.end:
            self.ends[report.step_done.turn] = time.perf_counter()
        super().post(report, attachment)


class OneEngine:
    """Commands in, outcomes out."""

    def __init__(self, engine: Engine, backend: TimedBackend, outbox: TimedOutbox, target: str) -> None:
        self.engine, self.backend, self.outbox, self.target = engine, backend, outbox, target
        self.states: dict[str, mpb.ModelState] = {}
        self._last_id = 0

    def send(self, body: Any) -> int:
        self._last_id += 1
        command = pb.Command(id=self._last_id)
        kinds = {f.message_type.name: f.name for f in pb.Command.DESCRIPTOR.oneofs_by_name["body"].fields}
        getattr(command, kinds[body.DESCRIPTOR.name]).CopyFrom(body)
        self.engine.apply(command, 1)
        return self._last_id

    async def outcome(self, command: int) -> pb.Report:
        """The report that ends a command; a failure is an error here."""
        while True:
            report = await self.outbox.take()
            if report.HasField("failed"):
                raise RuntimeError(report.failed.reason)
            if report.HasField("model"):
                self.states[report.model.model] = report.model
            if report.done.id == command or (report.step_done.turn == command and report.step_done.end):
                return report

    async def serve(self, models: dict[str, Path]) -> None:
        """The catalog, until every model is in the host cache."""
        specs = [mpb.ModelSpec(name=n, source=mpb.ModelSource(directory=str(d))) for n, d in models.items()]
        self.send(pb.Catalog(models=specs))
        while not models.keys() <= {n for n, s in self.states.items() if s.phase == mpb.MODEL_PHASE_CACHED}:
            report = await self.outbox.take()
            if report.model.phase == mpb.MODEL_PHASE_FAILED:
                raise RuntimeError(report.model.reason)
            self.states[report.model.model] = report.model

    def open(self, name: str, model: str) -> mpb.SeqId:
        seq = mpb.SeqId(request=name)
        sampling = mpb.Sampling(top_p=1, repetition_penalty=1)
        limits = mpb.Limits(max_tokens=100_000)
        self.send(
            pb.Open(
                seq=seq, epoch=1, model=model, prompt=PROMPT, sampling=sampling, limits=limits, reply_to=self.target
            )
        )
        return seq


@asynccontextmanager
async def one_engine(folder: Path, device_bytes: int, slab_bytes: int, cache_bytes: int) -> AsyncIterator[OneEngine]:
    """An engine on one thread of torch, and a gateway for its tokens."""
    configure_threads(1)
    memory = {
        "device_bytes": device_bytes,
        "slab_bytes": slab_bytes,
        "host_kv_bytes": 64 * slab_bytes,
        "host_cache_bytes": cache_bytes,
    }
    place = {
        "instance": "bench",
        "node": "n",
        "role": "unified",
        "scheduler": "none",
        "segments": str(folder / "segments"),
    }
    config = SidecarConfig.model_validate(place | {"memory": memory})
    loop = asyncio.get_running_loop()
    target = f"unix:{folder}/gateway.sock"
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.one_engine", target, stdout=asyncio.subprocess.PIPE
    )
    assert gateway.stdout is not None
    await gateway.stdout.readline()
    outbox, backend, sinks = TimedOutbox(loop), TimedBackend(), Sinks("bench", loop, lambda target: True)
    engine = Engine(config, "life", backend, outbox, sinks.push, lambda: None)
    engine.start()
    engine.hello(1)
    try:
        yield OneEngine(engine, backend, outbox, target)
    finally:
        await asyncio.to_thread(engine.stop, 5.0)
        await sinks.close()
        gateway.kill()
        await gateway.wait()


def make_model(directory: Path, seed: int, hidden: int, layers: int, vocabulary: int) -> Path:
    """A Llama of random weights: config.json and safetensors."""
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.utils.logging import disable_progress_bar

    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(hidden // 256, 1),
        vocab_size=vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    disable_progress_bar()
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


class _Gateway(gateway_pb2_grpc.TokenSinkServicer):
    async def Push(self, requests: Any, context: Any) -> Any:
        async for batch in requests:
            yield gateway_pb2.TokenAck(number=batch.number)


async def _gateway(target: str) -> None:
    server = grpc.aio.server()
    gateway_pb2_grpc.add_TokenSinkServicer_to_server(_Gateway(), server)
    server.add_insecure_port(target)
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_gateway(sys.argv[1]))
