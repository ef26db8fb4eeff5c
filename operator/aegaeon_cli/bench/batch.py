"""The switch of a decode batch with its KV on a real engine: the leaving one's KV out, weights, KV in, first token.

Commands are issued at once, as a scheduler does that has the room: what may overlap is up to the lanes.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon_cli.bench.rig import OneEngine
from aegaeon_cli.bench.spans import Span, extent, shifted
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb

MANY = 1 << 20  # slabs: the engine is ours alone
MOVES = ("unload", "load", "swap-out", "swap-in")


@dataclass(frozen=True, slots=True)
class Switched:
    """One switch: spans from the moment at which it was asked for, and a plain memcpy of its weights after it."""

    leaving: str
    coming: str
    spans: tuple[Span, ...]
    memcpy_bytes_per_s: float

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
        return sum(span.nbytes for span in self.of(*MOVES))

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
        """All bytes at the rate of memcpy."""
        return self.nbytes / self.memcpy_bytes_per_s


async def prepare(one: OneEngine, model: str, sequences: int, tokens: int) -> list[mpb.SeqId]:
    """Prefill a batch of a model; it ends on the host, the model unloaded."""
    await one.outcome(one.send(pb.Load(model=model, slabs=MANY)))
    seqs = [one.open(f"{model}-{i}", model, [(7 * i + k) % 1000 for k in range(tokens)]) for i in range(sequences)]
    parts = [pb.PrefillPart(seq=seq, tokens=tokens) for seq in seqs]
    await one.outcome(one.send(pb.Turn(model=model, prefill=parts, slabs=MANY)))
    for swap in [one.send(pb.SwapOut(seq=seq, epoch=1)) for seq in seqs]:
        await one.outcome(swap)
    await one.outcome(one.send(pb.Unload(model=model)))
    return seqs


async def enter(one: OneEngine, model: str, seqs: Sequence[mpb.SeqId]) -> None:
    """Bring a batch in where nothing has to leave."""
    sent = [one.send(pb.Load(model=model, slabs=MANY))]
    sent += [one.send(pb.SwapIn(seq=seq, epoch=1, slabs=MANY)) for seq in seqs]
    sent.append(one.send(pb.Turn(model=model, decode=seqs, steps=1, slabs=MANY)))
    for command in sent:
        await one.outcome(command)


async def switch(
    one: OneEngine, leaving: str, gone: Sequence[mpb.SeqId], coming: str, seqs: Sequence[mpb.SeqId], steps: int = 4
) -> Switched:
    """From one batch to the other, of which `steps` steps run."""
    one.backend.steps.clear()
    begin = time.monotonic()
    unload = one.send(pb.Unload(model=leaving))
    load = one.send(pb.Load(model=coming, slabs=MANY), after=[unload])
    moves = [one.send(pb.SwapOut(seq=seq, epoch=1)) for seq in gone]
    moves += [one.send(pb.SwapIn(seq=seq, epoch=1, slabs=MANY)) for seq in seqs]
    turn = one.send(pb.Turn(model=coming, decode=seqs, steps=steps, slabs=MANY), after=[load])
    for command in (unload, load, *moves, turn):
        await one.outcome(command)
    spans = shifted([*one.spans([unload, load, *moves]), *one.backend.steps], begin)
    return Switched(leaving, coming, tuple(spans), memcpy_rate(one, coming))


def memcpy_rate(one: OneEngine, model: str) -> float:
    """Bytes per second of a plain memcpy of a resident model's weights from the host cache to where they are."""
    held = one.engine.state.models[model]
    assert held.range is not None
    assert held.image is not None
    begin = time.monotonic()
    ctypes.memmove(held.range.address, held.image.address, held.image.nbytes)
    return held.image.nbytes / (time.monotonic() - begin)
