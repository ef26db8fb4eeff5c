"""What the engine's machinery costs: seconds of a turn less those in Backend.step, per step; a command without work."""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Row, report

from aegaeon_cli.bench.testing.rig import PROMPT, OneEngine, Size, make_model, one_engine
from aegaeon_proto.engine import commands

BATCH = 8
STEPS = 400
ROUNDS = 5
COMMANDS = 1000
SLAB = 1 << 20


async def measure(one: OneEngine, round_: int) -> tuple[float, float]:
    """(machinery, forward pass) in milliseconds a step, sinks and reports included."""
    names = [one.open(f"{round_}-{i}", "m") for i in range(BATCH)]
    parts = [commands.PrefillPart(seq=name, tokens=len(PROMPT)) for name in names]
    await one.outcome(one.send(commands.Turn(model="m", prefill=tuple(parts), slabs=64)))
    one.backend.steps.clear()
    begin = time.monotonic()
    turn = one.send(commands.Turn(model="m", decode=tuple(names), steps=STEPS, slabs=64))
    await one.outcome(turn)
    whole, forward = one.outbox.ends[turn] - begin, sum(step.seconds for step in one.backend.steps)
    for name in names:
        one.send(commands.Close(seq=name, epoch=1))
    return (whole - forward) / STEPS * 1e3, forward / STEPS * 1e3


async def idle_command(one: OneEngine) -> tuple[float, float]:
    """(milliseconds, context switches) of a command that finds nothing to do, while the other lanes sleep."""
    await one.outcome(one.send(commands.Unload(model="m")))
    begin, switches = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for _ in range(COMMANDS):
        await one.outcome(one.send(commands.Unload(model="m")))
    switched = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - switches
    return (time.monotonic() - begin) / COMMANDS * 1e3, switched / COMMANDS


async def run(folder: Path) -> bool:
    model = make_model(folder / "m", 0, Size(hidden=128, layers=2, vocabulary=1024))
    async with one_engine(folder, 96 * SLAB, SLAB, 64 << 20) as one:
        await one.serve({"m": model})
        await one.outcome(one.send(commands.Load(model="m", slabs=32)))
        rounds = sorted([await measure(one, i) for i in range(ROUNDS)])
        command_ms, switches = await idle_command(one)
    ours, forward = rounds[len(rounds) // 2]
    return report(
        "engine",
        [
            Row(f"engine: control overhead a step at batch {BATCH}", ours, "ms", 0.5, "<="),
            Row("engine: forward pass beside it (2 layers of 128)", forward, "ms"),
            Row("engine: a command without work, to its report", command_ms, "ms"),
            Row("engine: context switches of it", switches, "switches"),
        ],
    )


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="aegaeon-bench-") as folder:
        return not asyncio.run(run(Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
