"""One engine in this process, driven directly, with the times of all work on its lanes.

`OneEngine` takes the place of the scheduler; a separate process takes that of the gateway and acknowledges every batch.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from aegaeon_cli.bench.spans import Span
from aegaeon_operator.podrunner import SocketFolder
from aegaeon_proto.engine import commands
from aegaeon_proto.engine.catalog import AdapterSpec, DirectorySource, ModelPhase, ModelSpec, ModelState
from aegaeon_proto.engine.ids import CommandId, ModelName, SeqId
from aegaeon_proto.engine.reports import CommandDone, CommandFailed, Report, TurnProgress
from aegaeon_proto.engine.sampling import SamplingParams
from aegaeon_proto.frame_server import Connection, FrameServer
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import gateway_pb2
from aegaeon_sidecar.backends import Backend, Launched, StepInput
from aegaeon_sidecar.backends.completed import CompletedStep
from aegaeon_sidecar.backends.torch import TorchBackend, configure_threads
from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.engine.engine import Engine
from aegaeon_sidecar.engine.outbox import Outbox
from aegaeon_sidecar.rpc.sink import Sinks
from aegaeon_sidecar.sampling import Chosen

PROMPT = [5, 17, 23, 42, 8, 99, 140, 7]
_LANES = {"load": "weights", "unload": "weights", "swap-out": "kv-out", "swap-in": "kv-in", "adopt": "kv-in"}


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A step in flight on a GPU: `note` is called when its results are available."""

    launched: Launched
    note: Callable[[], None]

    def results(self) -> list[Chosen]:
        """See Launched."""
        results = self.launched.results()
        self.note()
        return results


class TimedBackend:
    """A backend that records every forward pass from launch to end: the rest of a turn is the engine's own time."""

    def __init__(self, timed: Backend) -> None:
        self._timed = timed
        self.describe, self.describe_adapter, self.register = timed.describe, timed.describe_adapter, timed.register
        self.bind_kv, self.forget, self.may_follow = timed.bind_kv, timed.forget, timed.may_follow
        self.captured = timed.captured
        self.steps: list[Span] = []

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        """See Backend."""
        begin = time.monotonic()
        launched = self._timed.launch(model, inputs, after.launched if isinstance(after, UnderWay) else after)
        return self._noted(model, launched, begin)

    def again(self, model: str, before: Launched) -> Launched | None:
        """See Backend."""
        begin = time.monotonic()
        launched = self._timed.again(model, before.launched if isinstance(before, UnderWay) else before)
        return None if launched is None else self._noted(model, launched, begin)

    def _noted(self, model: str, launched: Launched, begin: float) -> Launched:
        def note() -> None:
            self.steps.append(Span("compute", "step", model, begin, time.monotonic()))

        if not isinstance(launched, CompletedStep) or launched.over is not None:
            return UnderWay(launched, note)
        note()
        return launched


class TimedOutbox(Outbox):
    """Records when each command ended and how long it took, on its lane's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.ends: dict[int, float] = {}
        self.done: dict[int, CommandDone] = {}

    def post(self, report: Report, attachment: int | None = None) -> None:
        match report:
            case TurnProgress(turn=turn, end=True):
                self.ends[turn] = time.monotonic()
            case CommandDone(id=command):
                self.ends[command] = time.monotonic()
                self.done[command] = report
        super().post(report, attachment)


class OneEngine:
    """Commands in, outcomes and spans out."""

    def __init__(self, engine: Engine, backend: TimedBackend, outbox: TimedOutbox, target: str) -> None:
        self.engine, self.backend, self.outbox, self.target = engine, backend, outbox, target
        self.states: dict[str, ModelState] = {}
        self._last_id = CommandId(0)
        self._sent: dict[int, tuple[str, str]] = {}
        self._models: dict[SeqId, str] = {}
        self._over: dict[int, CommandDone | TurnProgress] = {}

    def send(self, body: commands.Body, after: Iterable[CommandId] = ()) -> CommandId:
        """Issue a command; returns its id."""
        self._last_id = CommandId(self._last_id + 1)
        match body:
            case commands.Load(model):
                self._sent[self._last_id] = ("load", model)
            case commands.Unload(model):
                self._sent[self._last_id] = ("unload", model)
            case commands.SwapOut(seq):
                self._sent[self._last_id] = ("swap-out", self._models[seq])
            case commands.SwapIn(seq):
                self._sent[self._last_id] = ("swap-in", self._models[seq])
            case commands.Adopt(seq):
                self._sent[self._last_id] = ("adopt", self._models[seq])
        self.engine.apply(commands.Command(self._last_id, body, tuple(after)), 1)
        return self._last_id

    async def outcome(self, command: CommandId) -> CommandDone | TurnProgress:
        """Wait for the report that ends a command; a failure raises RuntimeError."""
        while command not in self._over:
            report = await self.outbox.take()
            match report:
                case CommandFailed(reason=reason):
                    raise RuntimeError(reason)
                case ModelState(model):
                    self.states[model] = report
                case CommandDone(id=over) | TurnProgress(turn=over, end=True):
                    self._over[over] = report
        return self._over.pop(command)

    def scrub(self) -> None:
        """Overwrite the weights that unloaded models left in free slabs, so that the next load copies all bytes."""
        pool = self.engine.state.kv.device.pool
        pool.give(pool.take(pool.free))

    def spans(self, commands: Iterable[int]) -> list[Span]:
        """The lanes' work for these finished commands; a load consists of a map and a load."""
        return [span for command in commands for span in self._spans(command)]

    def _spans(self, command: int) -> list[Span]:
        kind, model = self._sent[command]
        done, end = self.outbox.done[command], self.outbox.ends[command]
        lane, begin = _LANES[kind], end - done.seconds
        if kind != "load":
            return [Span(lane, kind, model, begin, end, done.bytes_moved)]
        mapped = begin + self.engine.state.table.models[model].map_s
        return [Span(lane, "map", model, begin, mapped), Span(lane, "load", model, mapped, end, done.bytes_moved)]

    async def serve(self, models: dict[str, Path], adapters: Mapping[str, Mapping[str, Path]] | None = None) -> None:
        """Send the catalog, then wait until every model and these adapters are in the host cache."""
        some = {name: _adapters((adapters or {}).get(name, {})) for name in models}
        specs = (ModelSpec(name, _source(folder), adapters=some[name]) for name, folder in models.items())
        self.send(commands.Catalog(tuple(specs)))
        while not all(_is_cached(self.states.get(name), some[name]) for name in models):
            match await self.outbox.take():
                case ModelState(phase=ModelPhase.FAILED, reason=reason):
                    raise RuntimeError(reason)
                case ModelState(model) as state:
                    self.states[model] = state

    def open(
        self, name: str, model: str, prompt: Sequence[int] = PROMPT, adapter: str = "", salt: bytes = b""
    ) -> SeqId:
        """Open a greedy sequence that never ends by itself."""
        seq = SeqId(name, 0)
        self._models[seq] = model
        limits = SamplingParams(), 100_000, self.target
        self.send(commands.Open(seq, 1, ModelName(model), tuple(prompt), (), *limits, adapter=adapter, salt=salt))
        return seq


def _source(directory: Path) -> DirectorySource:
    return DirectorySource(str(directory))


def _adapters(directories: Mapping[str, Path]) -> tuple[AdapterSpec, ...]:
    return tuple(AdapterSpec(name, _source(directory)) for name, directory in directories.items())


def _is_cached(state: ModelState | None, adapters: Iterable[AdapterSpec]) -> bool:
    """Raises RuntimeError when an adapter has failed."""
    if state is None or state.phase is not ModelPhase.CACHED:
        return False
    phases = {adapter.adapter: adapter.phase for adapter in state.adapters}
    if failed := [adapter.reason for adapter in state.adapters if adapter.phase is ModelPhase.FAILED]:
        raise RuntimeError(failed[0])
    return all(phases.get(adapter.name) is ModelPhase.CACHED for adapter in adapters)


def _config(folder: Path, **fields: object) -> SidecarConfig:
    """The configuration of an engine without a scheduler."""
    place = {"instance": "bench", "node": "n", "role": "unified", "scheduler": "none", "segments": str(folder)}
    return SidecarConfig.model_validate(place | fields)


@asynccontextmanager
async def _a_gateway() -> AsyncIterator[str]:
    """Run a gateway process; yields its target."""
    with SocketFolder.create() as sockets:
        target = f"unix:{sockets.path}/gateway.sock"
        gateway = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aegaeon_cli.bench.testing.rig", target, stdout=asyncio.subprocess.PIPE
        )
        assert gateway.stdout is not None
        await gateway.stdout.readline()
        try:
            yield target
        finally:
            gateway.kill()
            await gateway.wait()


@asynccontextmanager
async def one_engine(
    folder: Path,
    device_bytes: int,
    slab_bytes: int,
    cache_bytes: int,
    host_kv_bytes: int | None = None,
    prefix_reuse: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    backend: Backend | None = None,
    max_batch: int = 8,
) -> AsyncIterator[OneEngine]:
    """An engine on one thread of torch, its files in `folder`, and a gateway for its tokens.

    Without `prefix_reuse` every copy is made. `backend`: instead of torch on `device`.
    """
    configure_threads(1)
    memory = {
        "device_bytes": device_bytes,
        "slab_bytes": slab_bytes,
        "host_kv_bytes": host_kv_bytes or 64 * slab_bytes,
        "host_cache_bytes": cache_bytes,
        "prefix_reuse": prefix_reuse,
    }
    config = _config(folder, memory=memory, max_batch=max_batch, device=device)
    loop = asyncio.get_running_loop()
    timed = TimedBackend(backend or TorchBackend(device=device, dtype=dtype))
    outbox, sinks = TimedOutbox(loop), Sinks("bench", loop, lambda target: True)
    engine = Engine(config, "life", timed, outbox, sinks.push, lambda _: None)
    async with _a_gateway() as target:
        engine.start()
        await asyncio.to_thread(engine.await_memory)
        engine.hello(1)
        try:
            yield OneEngine(engine, timed, outbox, target)
        finally:
            await asyncio.to_thread(engine.stop, 5.0)
            await sinks.close()


@dataclass(frozen=True, slots=True)
class Size:
    """The dimensions of a random Llama."""

    hidden: int
    layers: int
    vocabulary: int


def make_model(directory: Path, seed: int, size: Size) -> Path:
    """A Llama of random weights: config.json and safetensors."""
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.utils.logging import disable_progress_bar

    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 11 // 4,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        num_key_value_heads=max(size.hidden // 256, 1),
        vocab_size=size.vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    disable_progress_bar()
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


@dataclass(frozen=True, slots=True)
class _Gateway:
    """Acknowledges every batch."""

    connection: Connection

    def received(self, data: bytes) -> None:
        self.connection.send(gateway_pb2.TokenAck(number=gateway_pb2.TokenBatch.FromString(data).number))

    def ended(self) -> None:
        """Do nothing: no state is kept."""


async def _gateway(target: str) -> None:
    server = FrameServer("TokenSink", Role.ENGINE, _Gateway, most_bytes=64 << 20)
    await server.start(target, None)
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_gateway(sys.argv[1]))
