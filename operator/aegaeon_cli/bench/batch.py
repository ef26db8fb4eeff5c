"""The switch of a decode batch with its KV cache on a real engine: KV out, weights in, KV in, first token.

All commands are issued at once, as by a scheduler with enough free slabs: the lanes decide what overlaps.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from aegaeon_cli.bench.spans import Span, extent, shifted
from aegaeon_cli.bench.testing.rig import PROMPT, OneEngine, Size, make_model, one_engine
from aegaeon_proto.engine import commands
from aegaeon_proto.engine.ids import ModelName, SeqId

MANY = 1 << 20  # slabs: the engine is ours alone
SLAB_BYTES = 8 << 20
MODEL = Size(hidden=1024, layers=5, vocabulary=8192)
MOVES = ("unload", "load", "swap-out", "swap-in")
PlainRate = Callable[[OneEngine, str], float]  # bytes a second of a plain copy of a resident model's weights


@dataclass(frozen=True, slots=True)
class Switched:
    """One switch: spans counted from the moment of its request, and the rate of a plain copy after it."""

    leaving: ModelName
    coming: ModelName
    spans: tuple[Span, ...]
    plain_bytes_per_s: float

    def of(self, *whats: str) -> list[Span]:
        """The spans of these kinds."""
        return [span for span in self.spans if span.what in whats]

    def seconds(self, *whats: str) -> float:
        """Seconds from the first begin to the last end of these kinds."""
        begin, end = extent(self.of(*whats))
        return end - begin

    @property
    def nbytes(self) -> int:
        """Weights and KV in both directions."""
        return self.bytes_of(*MOVES)

    def bytes_of(self, *whats: str) -> int:
        """Bytes that the spans of these kinds moved."""
        return sum(span.nbytes for span in self.of(*whats))

    @property
    def mapping_s(self) -> float:
        """Seconds in which the weights were mapped."""
        return sum(span.seconds for span in self.of("map"))

    @property
    def moved_s(self) -> float:
        """Seconds until all bytes are in place."""
        return extent(self.of(*MOVES))[1]

    def hidden(self, what: str) -> float:
        """The share of these spans' time that overlaps with the load of the next model's weights."""
        begin, end = extent(self.of("map", "load"))
        beside = sum(max(0.0, min(span.end_s, end) - max(span.begin_s, begin)) for span in self.of(what))
        return beside / sum(span.seconds for span in self.of(what))

    @property
    def limit_s(self) -> float:
        """Seconds for all bytes at the rate of a plain copy: on a CPU they share one bus."""
        return self.nbytes / self.plain_bytes_per_s

    @property
    def link_limit_s(self) -> float:
        """Seconds for the weights at that rate, or for the KV when it is larger: on a GPU the smaller copy is
        hidden."""
        return max(self.bytes_of("load"), self.bytes_of("swap-in"), self.bytes_of("swap-out")) / self.plain_bytes_per_s


async def prepare(engine: OneEngine, model: ModelName, sequences: int, tokens: int) -> list[SeqId]:
    """Prefill a batch of a model, then swap it out to the host and unload the model."""
    await engine.outcome(engine.send(commands.Load(model=model, slabs=MANY)))
    seqs = [engine.open(f"{model}-{i}", model, [(7 * i + k) % 1000 for k in range(tokens)]) for i in range(sequences)]
    parts = [commands.PrefillPart(seq=seq, tokens=tokens) for seq in seqs]
    await engine.outcome(engine.send(commands.Turn(model=model, prefill=tuple(parts), slabs=MANY)))
    for swap in [engine.send(commands.SwapOut(seq=seq, epoch=1)) for seq in seqs]:
        await engine.outcome(swap)
    await engine.outcome(engine.send(commands.Unload(model=model)))
    return seqs


async def enter(engine: OneEngine, model: ModelName, seqs: Sequence[SeqId]) -> None:
    """Swap a batch in when no other batch is resident."""
    sent = [engine.send(commands.Load(model=model, slabs=MANY))]
    sent += [engine.send(commands.SwapIn(seq=seq, epoch=1, slabs=MANY)) for seq in seqs]
    sent.append(engine.send(commands.Turn(model=model, decode=tuple(seqs), steps=1, slabs=MANY)))
    for command in sent:
        await engine.outcome(command)


async def switch(
    engine: OneEngine,
    leaving: ModelName,
    gone: Sequence[SeqId],
    coming: ModelName,
    seqs: Sequence[SeqId],
    plain_rate: PlainRate,
    steps: int = 4,
) -> Switched:
    """Switch from one batch to the other and run `steps` steps of it; the next model has no data on the device
    before."""
    engine.scrub()
    engine.backend.steps.clear()
    begin = time.monotonic()
    unload = engine.send(commands.Unload(model=leaving))
    load = engine.send(commands.Load(model=coming, slabs=MANY), after=[unload])
    moves = [engine.send(commands.SwapOut(seq=seq, epoch=1)) for seq in gone]
    moves += [engine.send(commands.SwapIn(seq=seq, epoch=1, slabs=MANY)) for seq in seqs]
    turn = engine.send(commands.Turn(model=coming, decode=tuple(seqs), steps=steps, slabs=MANY), after=[load])
    for command in (unload, load, *moves, turn):
        await engine.outcome(command)
    spans = shifted([*engine.spans([unload, load, *moves]), *engine.backend.steps], begin)
    return Switched(leaving, coming, tuple(spans), plain_rate(engine, coming))


def memcpy_rate(engine: OneEngine, model: str) -> float:
    """Bytes per second of a plain memcpy of a resident model's weights from the host cache to their device range."""
    resident = engine.engine.state.table.models[model]
    assert resident.range is not None
    assert resident.image is not None
    begin = time.monotonic()
    ctypes.memmove(resident.range.address, resident.image.address, resident.image.nbytes)
    return resident.image.nbytes / (time.monotonic() - begin)


@dataclass(frozen=True, slots=True)
class Measured:
    """Switches back and forth, and the engine's overhead in seconds: at a change of model, and between steps."""

    switches: tuple[Switched, ...]
    resident_s: float
    overhead_s: float


async def alone(folder: Path, sequences: int, tokens: int, rounds: int) -> Measured:
    """Measure on an engine of its own, with two random models of 260 MB; memory first holds only one of them."""
    models = {name: make_model(folder / name, i, MODEL) for i, name in enumerate("AB")}
    async with one_engine(folder, 96 * SLAB_BYTES, SLAB_BYTES, 1 << 30) as engine:
        await engine.serve(models)
        seqs = {name: await prepare(engine, name, sequences, tokens) for name in map(ModelName, models)}
        switches = await to_and_fro(engine, seqs, rounds)
        overhead_s = await between_steps(engine, switches[-1].coming, seqs[switches[-1].coming])
        await engine.outcome(engine.send(commands.Load(model=switches[-1].leaving, slabs=MANY)))
        return Measured(switches, await to_residents(engine, list(seqs)), overhead_s)


async def to_and_fro(
    engine: OneEngine, seqs: Mapping[ModelName, Sequence[SeqId]], rounds: int, plain_rate: PlainRate = memcpy_rate
) -> tuple[Switched, ...]:
    """Switch `rounds` times between two prepared batches, after one switch in each direction that touches all pages."""
    active, next_model = seqs
    await enter(engine, active, seqs[active])
    runs = []
    for _ in range(rounds + 2):
        runs.append(await switch(engine, active, seqs[active], next_model, seqs[next_model], plain_rate))
        active, next_model = next_model, active
    return tuple(runs[2:])


async def between_steps(engine: OneEngine, model: ModelName, seqs: Sequence[SeqId], steps: int = 16) -> float:
    """Seconds from the end of a step to the begin of the next one in a turn: the median."""
    engine.backend.steps.clear()
    await engine.outcome(engine.send(commands.Turn(model=model, decode=tuple(seqs), steps=steps, slabs=MANY)))
    return statistics.median(b.begin_s - a.end_s for a, b in pairwise(engine.backend.steps))


async def to_residents(engine: OneEngine, names: Sequence[ModelName], turns: int = 40) -> float:
    """Run turns of one step alternating between resident models, queued as by a scheduler: seconds beyond the step,
    median."""
    seqs = {name: engine.open(f"{name}-resident", name) for name in names}
    for name, seq in seqs.items():
        part = commands.PrefillPart(seq=seq, tokens=len(PROMPT))
        await engine.outcome(engine.send(commands.Turn(model=name, prefill=(part,), slabs=8)))
    engine.backend.steps.clear()
    bodies = [commands.Turn(model=name, decode=(seq,), steps=1, slabs=8) for name, seq in seqs.items()]
    queued = [engine.send(bodies[number % len(bodies)]) for number in range(turns)]
    await engine.outcome(queued[-1])
    ends = [engine.outbox.ends[turn] for turn in queued]
    return statistics.median(ends[i] - ends[i - 1] - engine.backend.steps[i].seconds for i in range(1, turns))
