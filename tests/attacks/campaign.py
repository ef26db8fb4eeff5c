"""One attack, or several at once, against a stack with the innocent tenant beside: what happened, in figures."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from attacks import attacker
from attacks.attacker import READY_S, TAIL_S
from attacks.bars import STALL_S, TBT_FLOOR_S
from attacks.ground import Ground
from attacks.innocent import Innocent
from attacks.observe import Callback, Memory, callbacks
from attacks.stranger import READY
from attacks.table import Attack
from attacks.target import Target

from aegaeon_proto.v1.model_pb2 import ModelSource

PACE_S = 0.02
SETTLE_S = 0.3


@dataclass(frozen=True, slots=True)
class Tbt:
    """Time between two events of the innocent tenant's streams, seconds."""

    p50_s: float
    p99_s: float
    longest_s: float

    @staticmethod
    def of(gaps: Sequence[float]) -> Tbt:
        ordered = sorted(gaps) or [float("inf")]
        return Tbt(statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1])


@dataclass
class Outcome:
    """What an attack did."""

    names: tuple[str, ...]
    quiet: Tbt
    during: Tbt
    completed: int  # innocent chats that ended during the attack as they should
    problems: list[str]  # innocent chats that failed or differ
    harm: list[str]  # seen by attacks themselves: to others who behave, or a promise of the stack that was broken
    dead: list[str]
    memory_bytes: int
    memory_before_bytes: int
    picker_bytes: int
    longest: list[Callback]
    late: int  # innocent tokens behind their deadlines
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def ratio(self) -> float:
        return max(self.during.p99_s, TBT_FLOOR_S) / max(self.quiet.p99_s, TBT_FLOOR_S)

    @property
    def harmed(self) -> bool:
        """The next attack needs a new stack."""
        return bool(self.dead or self.problems or self.harm) or self.during.longest_s > STALL_S

    @property
    def longest_cpu_s(self) -> float:
        return self.longest[0].cpu_s if self.longest else 0.0

    def line(self) -> str:
        """For people."""
        slow = f" in {self.longest[0].name.split(' > ')[-1][:60]}" if self.longest else ""
        return (
            f"{'+'.join(self.names)[:80]:<24} "
            f"TBT p99 {self.quiet.p99_s * 1e3:.0f} -> {self.during.p99_s * 1e3:.0f} ms, "
            f"longest {self.during.longest_s:.2f} s; {self.late} tokens late; "
            f"{self.completed} chats, {len(self.problems)} bad, {len(self.harm)} cases of harm; "
            f"gateway {self.memory_bytes >> 20} MiB, picker {self.picker_bytes >> 20} MiB, "
            f"callback {self.longest_cpu_s * 1e3:.0f} ms{slow}; "
            f"dead: {', '.join(self.dead) or 'none'}; answers {dict(self.answers.most_common(6))}"
        )


async def measure_quiet(innocent: Innocent, seconds: float) -> Tbt:
    """The innocent tenant's time between tokens while nothing else asks."""
    await innocent.calm()
    begin = time.monotonic()
    await asyncio.sleep(seconds)
    return Tbt.of(innocent.record.gaps_within(begin, time.monotonic()))


async def attack(
    ground: Ground,
    innocent: Innocent,
    attacks: Sequence[Attack],
    good: Path,
    *,
    quiet: Tbt,
    seconds: float,
    pace: float = PACE_S,
) -> Outcome:
    """The attacks, each a process of its own, and what they did beside the figures of a quiet time."""
    ready = [await asyncio.to_thread(_write, ground, one, good) for one in attacks]
    hostile = {name: source for _, sources in ready for name, source in sources.items()}
    starts = [(one.name, target) for one, (target, _) in zip(attacks, ready, strict=True)]
    async with _started(starts, seconds, pace) as attackers:
        await innocent.calm()
        begin = time.monotonic()
        gateway, picker = (Memory(ground.processes[name].pid) for name in ("gateway", "picker"))
        async with gateway, picker:
            if hostile:
                await ground.set_models(hostile)
            for one in attackers:
                one.pipe.send("go")
            await asyncio.sleep(seconds)
            went_on = await innocent.all_went_on(time.monotonic())
            end = time.monotonic()
            saw = [_checked(await one.receive(2 * TAIL_S)) for one in attackers]
    if hostile and not ground.dead():
        await ground.set_models({})
    record = innocent.record
    problems = record.problems_within(begin, end + SETTLE_S)
    if not went_on:
        problems.append("a stream of the innocent tenant stalls")
    return Outcome(
        names=tuple(one.name for one in attacks),
        quiet=quiet,
        during=Tbt.of(record.gaps_within(begin, end)),
        completed=record.completed_within(begin, end),
        problems=problems,
        harm=[harm for one in saw for harm in one["harm"]],
        dead=ground.dead(),
        memory_bytes=gateway.peak_bytes,
        memory_before_bytes=gateway.before_bytes,
        picker_bytes=picker.peak_bytes,
        longest=callbacks(ground.loop_record, begin, end)[:5],
        late=record.late_within(begin, end),
        answers=sum((Counter(one["answers"]) for one in saw), Counter()),
    )


def _checked(saw: dict[str, Any]) -> dict[str, Any]:
    assert "error" not in saw, saw["error"]
    return saw


def _write(ground: Ground, one: Attack, good: Path) -> tuple[Target, dict[str, ModelSource]]:
    """What an attacker knows, and its ModelPool, whose files are written here."""
    target = ground.target()
    if one.models is None:
        return target, {}
    folder = ground.folder / f"{one.name}-{time.monotonic_ns()}"
    folder.mkdir()
    sources = one.models(good, folder, target.web)
    return replace(target, hostile=tuple(sources), folder=str(folder)), sources


@dataclass(frozen=True, slots=True)
class Attacker:
    """The process of an attack, and the pipe on which it is heard."""

    process: ForkServerProcess
    pipe: Connection

    @staticmethod
    def start(name: str, target: Target, seconds: float, pace: float) -> Attacker:
        """In a fork of a process that has imported attacks, which the first call starts."""
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload(["__main__", "attacks.attacker"])
        pipe, theirs = multiprocessing.Pipe()
        with theirs:
            process = forks.Process(target=attacker.run, args=(theirs, name, target, seconds, pace), daemon=True)
            process.start()
        return Attacker(process, pipe)

    async def receive(self, timeout_s: float) -> Any:
        """What it sends next. Raises TimeoutError, and EOFError when it has ended."""
        if not await asyncio.to_thread(self.pipe.poll, timeout_s):
            raise TimeoutError(f"attacker {self.process.pid} sent nothing for {timeout_s:.0f} s")
        return self.pipe.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


@asynccontextmanager
async def _started(starts: Sequence[tuple[str, Target]], seconds: float, pace: float) -> AsyncIterator[list[Attacker]]:
    """A process for each attack by its name, all ready. Those that are left at the end are killed."""
    attackers: list[Attacker] = []
    try:
        for name, target in starts:
            attackers.append(await asyncio.to_thread(Attacker.start, name, target, seconds, pace))
        for one in attackers:
            first = await one.receive(READY_S)
            assert first == READY, f"the attacker sent {first}"
        yield attackers
    finally:
        for one in attackers:
            one.end()
