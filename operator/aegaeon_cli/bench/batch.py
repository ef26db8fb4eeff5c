"""The switch of a decode batch with its KV on a real engine: the leaving one's KV out, weights, KV in, first token.

Commands are issued at once, as a scheduler does that has the room: what may overlap is up to the lanes.
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
    """One switch: spans from the moment at which it was asked for, and the rate of a plain copy after it."""

    leaving: ModelName
    coming: ModelName
    spans: tuple[Span, ...]
    plain_bytes_per_s: float

    def of(self, *whats: str) -> list[Span]:
        """The spans of these kinds."""
        return [span for span in self.spans if span.what in whats]

    def seconds(self, *whats: str) -> float:
        """From the first begin to the last end of these kinds."""
        begin, end = extent(self.of(*whats))
        return end - begin

    @property
    def nbytes(self) -> int:
        """Weights and KV in both directions."""
        return self.bytes_of(*MOVES)

    def bytes_of(self, *whats: str) -> int:
        """What the spans of these kinds moved."""
        return sum(span.nbytes for span in self.of(*whats))

    @property
    def mapping_s(self) -> float:
        """Of the weights."""
        return sum(span.seconds for span in self.of("map"))

    @property
    def moved_s(self) -> float:
        """Until all bytes are where they belong."""
        return extent(self.of(*MOVES))[1]

    def hidden(self, what: str) -> float:
        """Share of these spans' time that passed while the coming model's weights came in."""
        begin, end = extent(self.of("map", "load"))
        beside = sum(max(0.0, min(span.end_s, end) - max(span.begin_s, begin)) for span in self.of(what))
        return beside / sum(span.seconds for span in self.of(what))

    @property
    def limit_s(self) -> float:
        """All bytes at the rate of a plain copy: on a CPU they share one bus."""
        return self.nbytes / self.plain_bytes_per_s

    @property
    def link_limit_s(self) -> float:
        """The weights at that rate, or the KV where it is more: on a GPU it is hidden behind them."""
        return max(self.bytes_of("load"), self.bytes_of("swap-in"), self.bytes_of("swap-out")) / self.plain_bytes_per_s


async def prepare(one: OneEngine, model: ModelName, sequences: int, tokens: int) -> list[SeqId]:
    """Prefill a batch of a model; it ends on the host, the model unloaded."""
    await one.outcome(one.send(commands.Load(model=model, slabs=MANY)))
    seqs = [one.open(f"{model}-{i}", model, [(7 * i + k) % 1000 for k in range(tokens)]) for i in range(sequences)]
    parts = [commands.PrefillPart(seq=seq, tokens=tokens) for seq in seqs]
    await one.outcome(one.send(commands.Turn(model=model, prefill=tuple(parts), slabs=MANY)))
    for swap in [one.send(commands.SwapOut(seq=seq, epoch=1)) for seq in seqs]:
        await one.outcome(swap)
    await one.outcome(one.send(commands.Unload(model=model)))
    return seqs


async def enter(one: OneEngine, model: ModelName, seqs: Sequence[SeqId]) -> None:
    """Bring a batch in where nothing has to leave."""
    sent = [one.send(commands.Load(model=model, slabs=MANY))]
    sent += [one.send(commands.SwapIn(seq=seq, epoch=1, slabs=MANY)) for seq in seqs]
    sent.append(one.send(commands.Turn(model=model, decode=tuple(seqs), steps=1, slabs=MANY)))
    for command in sent:
        await one.outcome(command)


async def switch(
    one: OneEngine,
    leaving: ModelName,
    gone: Sequence[SeqId],
    coming: ModelName,
    seqs: Sequence[SeqId],
    plain_rate: PlainRate,
    steps: int = 4,
) -> Switched:
    """From one batch to the other, of which `steps` steps run; nothing of the coming one is left on the device."""
    one.scrub()
    one.backend.steps.clear()
    begin = time.monotonic()
    unload = one.send(commands.Unload(model=leaving))
    load = one.send(commands.Load(model=coming, slabs=MANY), after=[unload])
    moves = [one.send(commands.SwapOut(seq=seq, epoch=1)) for seq in gone]
    moves += [one.send(commands.SwapIn(seq=seq, epoch=1, slabs=MANY)) for seq in seqs]
    turn = one.send(commands.Turn(model=coming, decode=tuple(seqs), steps=steps, slabs=MANY), after=[load])
    for command in (unload, load, *moves, turn):
        await one.outcome(command)
    spans = shifted([*one.spans([unload, load, *moves]), *one.backend.steps], begin)
    return Switched(leaving, coming, tuple(spans), plain_rate(one, coming))


def memcpy_rate(one: OneEngine, model: str) -> float:
    """Bytes per second of a plain memcpy of a resident model's weights from the host cache to where they are."""
    held = one.engine.state.table.models[model]
    assert held.range is not None
    assert held.image is not None
    begin = time.monotonic()
    ctypes.memmove(held.range.address, held.image.address, held.image.nbytes)
    return held.image.nbytes / (time.monotonic() - begin)


@dataclass(frozen=True, slots=True)
class Measured:
    """Some switches to and fro, and what the engine takes besides: seconds at a change of model, and between steps."""

    switches: tuple[Switched, ...]
    resident_s: float
    overhead_s: float


async def alone(folder: Path, sequences: int, tokens: int, rounds: int) -> Measured:
    """Measure on an engine of its own, with two random models of 260 MB, of which memory holds one at first."""
    models = {name: make_model(folder / name, i, MODEL) for i, name in enumerate("AB")}
    async with one_engine(folder, 96 * SLAB_BYTES, SLAB_BYTES, 1 << 30) as one:
        await one.serve(models)
        seqs = {name: await prepare(one, name, sequences, tokens) for name in map(ModelName, models)}
        switches = await to_and_fro(one, seqs, rounds)
        overhead_s = await between_steps(one, switches[-1].coming, seqs[switches[-1].coming])
        await one.outcome(one.send(commands.Load(model=switches[-1].leaving, slabs=MANY)))
        return Measured(switches, await to_residents(one, list(seqs)), overhead_s)


async def to_and_fro(
    one: OneEngine, seqs: Mapping[ModelName, Sequence[SeqId]], rounds: int, plain_rate: PlainRate = memcpy_rate
) -> tuple[Switched, ...]:
    """So many switches between two prepared batches, after one in each direction that touches all pages."""
    here, there = seqs
    await enter(one, here, seqs[here])
    runs = []
    for _ in range(rounds + 2):
        runs.append(await switch(one, here, seqs[here], there, seqs[there], plain_rate))
        here, there = there, here
    return tuple(runs[2:])


async def between_steps(one: OneEngine, model: ModelName, seqs: Sequence[SeqId], steps: int = 16) -> float:
    """Seconds from the end of a step to the next one's begin, within a turn: the median."""
    one.backend.steps.clear()
    await one.outcome(one.send(commands.Turn(model=model, decode=tuple(seqs), steps=steps, slabs=MANY)))
    return statistics.median(b.begin_s - a.end_s for a, b in pairwise(one.backend.steps))


async def to_residents(one: OneEngine, names: Sequence[ModelName], turns: int = 40) -> float:
    """Turns of one step, to and fro between residents, queued as a scheduler does: seconds beyond the step, median."""
    seqs = {name: one.open(f"{name}-resident", name) for name in names}
    for name, seq in seqs.items():
        part = commands.PrefillPart(seq=seq, tokens=len(PROMPT))
        await one.outcome(one.send(commands.Turn(model=name, prefill=(part,), slabs=8)))
    one.backend.steps.clear()
    bodies = [commands.Turn(model=name, decode=(seq,), steps=1, slabs=8) for name, seq in seqs.items()]
    queued = [one.send(bodies[number % len(bodies)]) for number in range(turns)]
    await one.outcome(queued[-1])
    ends = [one.outbox.ends[turn] for turn in queued]
    return statistics.median(ends[i] - ends[i - 1] - one.backend.steps[i].seconds for i in range(1, turns))
