"""The data of a modelled sidecar: its shape, its models, its sequences, its current turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants
from aegaeon_scheduler.core.domain import CommandId, Footprint, InstanceId, Memory, ModelName, Place, Role, SeqId
from aegaeon_simulator.workload.content import Content


@dataclass(frozen=True, slots=True)
class Served:
    """A model as a modelled engine serves it."""

    footprint: Footprint
    latency: LatencyConstants


def together_s(latency: LatencyConstants, lengths: list[int]) -> float:
    """Seconds of whole prompts that one pass computes (Eq. 5 with a floor)."""
    seconds = latency.p1 * sum(lengths) + latency.p2 * sum(length**2 for length in lengths)
    return max(latency.floor, latency.p0 + seconds)


def part_s(latency: LatencyConstants, done: int, tokens: int) -> float:
    """Seconds of a prefill part of `tokens` after `done` (Eq. 5 with a floor, whose first part pays the constant)."""
    seconds = latency.p1 * tokens + latency.p2 * ((done + tokens) ** 2 - done**2)
    return seconds if done else max(latency.floor, latency.p0 + seconds)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Facts that the driver adds to Open. `length`: output tokens after which the sequence ends by itself; `content`:
    what it shares with others; None: nothing of it is kept for others."""

    prompt_tokens: int
    prefix_tokens: int
    length: int
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """A sidecar's shape. Times in seconds."""

    instance: InstanceId
    role: Role
    slabs: int
    host_slabs: int
    slab_bytes: int
    max_batch: int = 64
    node: str = "node-0"
    device: str = "modelled"
    gpus: int = 1  # that make up the device
    switch_s: float = 0.0  # change of the running model
    first_s: float = 0.0  # a model's first decode step here, beside the step itself
    report_steps: int = 8  # a step report at least so often
    stall_bytes_per_s: float = 0.0  # a load holds the compute lane up for its bytes at this rate; 0: not at all
    load_tax: float = 0.0  # share of the compute lane that a load takes while it runs
    models: frozenset[ModelName] | None = None  # those that its node has; None: all
    latency: Mapping[ModelName, LatencyConstants] | None = None  # of its device, where devices differ
    one_link: bool = False  # weights and KV share the device's link, one after the other
    host_cache_bytes: int = 0  # of its node, for weights; 0: every model is there
    disk_bytes_per_s: float = 7e9  # of its node, for weights that are not there
    prefix_reuse: bool = True  # prompts that begin alike share KV
    node_bytes_per_s: float = 0.0  # what the node's memory gives to all its devices together; 0: no limit


@dataclass
class Sequence:
    """A sequence as the engine knows it. `kv` tokens in `blocks` blocks on the device, `host` blocks on the host."""

    seq: SeqId
    epoch: int
    model: ModelName
    prompt: int
    output: int
    length: int
    kv: int = 0
    blocks: int = 0
    host: int = 0
    place: Place = Place.NONE
    copying: CommandId | None = None
    handle_of: CommandId | None = None
    closing: bool = False
    sampled: bool = False  # a token came out here: its prompt is in
    content: Content | None = None


@dataclass
class Chunk:
    """Decode steps in a row. Each is `slope_s` longer than the one before: every member has a token more."""

    began: float
    batch: list[Sequence]
    steps: int
    first_s: float
    slope_s: float
    done: int = 0

    def seconds(self, steps: int) -> float:
        """Time of the first so many steps."""
        return steps * self.first_s + self.slope_s * (steps * (steps - 1) // 2)

    def times(self, upto: int) -> list[float]:
        """The end times of the steps that are not done, up to this one."""
        began, first_s, slope_s = self.began, self.first_s, self.slope_s
        return [began + (j * first_s + slope_s * (j * (j - 1) // 2)) for j in range(self.done + 1, upto + 1)]

    def done_by(self, now: float) -> int:
        """The number of steps that have ended at this time."""
        done = self.done
        while done < self.steps and self.began + self.seconds(done + 1) <= now:
            done += 1
        return done


@dataclass
class Running:
    """The turn on the compute lane, and what happened since its last report."""

    id: CommandId
    body: cmd.Turn
    steps: int
    slabs: int
    decode: list[SeqId]
    parts: deque[cmd.PrefillPart]
    done: int = 0
    changed: dict[SeqId, ev.Progress] = field(default_factory=dict)
    report_steps: int = 0
    decode_s: float = 0.0
    prefill_s: float = 0.0
    prefill_tokens: int = 0
    wait_s: float = 0.0
    first_s: float = 0.0
    batch: int = 0
    context: int = 0
    chunk: Chunk | None = None
    idle_since: float | None = None  # every member's KV is still on its way

    def amend(self, change: cmd.Amend) -> None:
        """Shrink, extend, join, leave; a further grant."""
        self.slabs += change.slabs
        self.steps = self.steps if change.steps is None else change.steps
        self.decode += [s for s in change.join if s not in self.decode]
        self.decode = [s for s in self.decode if s not in change.leave]
        self.parts = deque(p for p in self.parts if p.seq not in change.leave and self.steps)

    def report(self, instance: InstanceId, memory: Memory, end: bool, cold: bool) -> ev.TurnProgress:
        """Return what happened since the last report, and count anew."""
        event = ev.TurnProgress(
            instance, self.id, tuple(self.changed.values()), self.report_steps, self.decode_s, self.prefill_tokens,
            self.prefill_s, self.wait_s, self.batch, self.context, memory, end, self.first_s,
            (self.first_s > 0.0 or self.body.warm_up) and not cold,
        )  # fmt: skip
        self.changed = {}
        self.report_steps = self.prefill_tokens = 0
        self.decode_s = self.prefill_s = self.wait_s = self.first_s = 0.0
        return event


LANES = ("weights", "out", "in", "compute")


def lane_of(body: cmd.Body) -> str | None:
    """The lane of a command, None for those that act at once."""
    if isinstance(body, (cmd.Load, cmd.Unload)):
        return "weights"
    if isinstance(body, cmd.SwapOut):
        return "out"
    if isinstance(body, (cmd.SwapIn, cmd.Adopt)):
        return "in"
    return "compute" if isinstance(body, cmd.Turn) else None
