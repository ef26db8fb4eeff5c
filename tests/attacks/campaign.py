"""One attack, or several at once, against a stack with the innocent tenant beside: what happened, in figures."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from attacks.attacker import READY_S, TAIL_S
from attacks.bars import STALL_S, TBT_FLOOR_S
from attacks.ground import Ground
from attacks.innocent import Innocent
from attacks.observe import Callback, Memory, callbacks
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


async def attack(
    ground: Ground,
    innocent: Innocent,
    attacks: Sequence[Attack],
    good: Path,
    *,
    quiet_s: float,
    seconds: float,
    pace: float = PACE_S,
) -> Outcome:
    """A quiet time, then the attacks, each a process of its own; the figures are of both times."""
    ready = [await asyncio.to_thread(_write, ground, one, good) for one in attacks]
    hostile = {name: source for _, sources in ready for name, source in sources.items()}
    starts = [(one.name, target) for one, (target, _) in zip(attacks, ready, strict=True)]
    async with _started(starts, seconds, pace) as attackers:
        await innocent.calm()
        quiet_from = time.monotonic()
        await asyncio.sleep(quiet_s)
        begin = time.monotonic()
        gateway, picker = (Memory(ground.processes[name].pid) for name in ("gateway", "picker"))
        async with gateway, picker:
            if hostile:
                await ground.set_models(hostile)
            await _tell(attackers)
            await asyncio.sleep(seconds)
            went_on = await innocent.all_went_on(time.monotonic())
            end = time.monotonic()
            saw = [await _end(process) for process in attackers]
    if hostile and not ground.dead():
        await ground.set_models({})
    record = innocent.record
    problems = record.problems_within(begin, end + SETTLE_S)
    if not went_on:
        problems.append("a stream of the innocent tenant stalls")
    return Outcome(
        names=tuple(one.name for one in attacks),
        quiet=Tbt.of(record.gaps_within(quiet_from, begin)),
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


def _write(ground: Ground, one: Attack, good: Path) -> tuple[Target, dict[str, ModelSource]]:
    """What an attacker knows, and its ModelPool, whose files are written here."""
    target = ground.target()
    if one.models is None:
        return target, {}
    folder = ground.folder / f"{one.name}-{time.monotonic_ns()}"
    folder.mkdir()
    sources = one.models(good, folder, target.web)
    return replace(target, hostile=tuple(sources), folder=str(folder)), sources


@asynccontextmanager
async def _started(starts: Sequence[tuple[str, Target]], seconds: float, pace: float) -> AsyncIterator[list[Process]]:
    """A process for each attack by its name, all ready. Those that are left at the end are killed."""
    attackers: list[Process] = []
    try:
        for name, target in starts:
            arguments = (name, target.as_json(), str(seconds), str(pace))
            command = (sys.executable, "-m", "attacks.attacker", *arguments)
            attackers.append(await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE))
        for process in attackers:
            await _until_ready(process)
        yield attackers
    finally:
        for process in attackers:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _until_ready(process: Process) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(READY_S):
        line = await process.stdout.readline()
    assert line == b"ready\n", f"the attacker said {line + await process.stdout.read()!r}"


async def _tell(attackers: Sequence[Process]) -> None:
    for process in attackers:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        await process.stdin.drain()


async def _end(process: Process) -> dict[str, object]:
    async with asyncio.timeout(2 * TAIL_S):
        output, _ = await process.communicate()
    saw = json.loads(output or b'{"error": "the attacker printed nothing"}')
    assert "error" not in saw, saw["error"]
    return saw
