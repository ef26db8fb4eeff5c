"""`python -m attacks`: all attacks at once for MINUTES, in figures beside their bars; `--each`: one after the other.

At once, every attacker is slower (ALL_PACE_S), so that forty of them ask for no more than a machine has; each keeps its
connections, bodies and files. The innocent tenant streams from the first moment to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from attacks import bars
from attacks.arena import Arena
from attacks.campaign import PACE_S, Outcome
from attacks.ground import GOOD_MODELS
from attacks.innocent import ChatError
from attacks.table import ATTACKS
from benchmarks.report import Row, read_settings, report

from aegaeon_cli.folders import models_folder
from aegaeon_cli.models import make_models

ALL_PACE_S = 0.5
QUIET_S = 20.0


async def each(arena: Arena, names: list[str], seconds: float) -> bool:
    """One line for each; True when none did harm."""
    harmless = True
    for name in names:
        try:
            outcome = await arena.attack([ATTACKS[name]], quiet_s=2.0, seconds=seconds, pace=PACE_S)
        except (AssertionError, ChatError, OSError, TimeoutError, RuntimeError) as error:
            print(f"{name:<24} the harness gave up: {type(error).__name__}: {error}", flush=True)
            harmless = False
        else:
            tell(outcome)
            harmless = harmless and not outcome.harmed
    return harmless


async def together(arena: Arena, names: list[str], minutes: float, short: bool) -> bool:
    """All at once; True when every bar holds."""
    attacks = [ATTACKS[name] for name in names]
    outcome = await arena.attack(attacks, quiet_s=QUIET_S, seconds=60 * minutes, pace=ALL_PACE_S)
    tell(outcome)
    for one in outcome.longest:
        print(f"    {one.cpu_s * 1e3:.0f} ms (wall {one.wall_s * 1e3:.0f} ms): {one.name}", flush=True)
    return report("attacks", rows(outcome, len(attacks), minutes), short)


def rows(outcome: Outcome, attacks: int, minutes: float) -> list[Row]:
    quiet, during = outcome.quiet, outcome.during
    return [
        Row("attacks at once", attacks, "attacks", len(ATTACKS)),
        Row("minutes under attack", minutes, "min", 10 if minutes >= 10 else None),
        Row("innocent streams that completed, tokens identical", outcome.completed, "streams"),
        Row("innocent streams that failed or differ", len(outcome.problems), "streams", 0, "<="),
        Row("harm that attacks saw done to others (answers of the picker)", len(outcome.harm), "cases", 0, "<="),
        Row("innocent tokens behind their deadlines", outcome.late, "tokens", 0, "<="),
        Row("processes that ended", len(outcome.dead), "processes", 0, "<="),
        Row(
            "longest callback on the gateway's event loop (CPU)",
            outcome.longest_cpu_s * 1e3,
            "ms",
            bars.CALLBACK_S * 1e3,
            "<=",
        ),
        Row(
            "gateway's memory at most (PSS, with its children)",
            outcome.memory_bytes / 2**20,
            "MiB",
            bars.GATEWAY_BYTES / 2**20,
            "<=",
        ),
        Row("picker's memory at most (PSS)", outcome.picker_bytes / 2**20, "MiB", bars.PICKER_BYTES / 2**20, "<="),
        Row("gateway's memory before", outcome.memory_before_bytes / 2**20, "MiB"),
        Row(
            "innocent TBT p99, to quiet",
            during.p99_s * 1e3,
            "ms",
            max(quiet.p99_s, bars.TBT_FLOOR_S) * 1e3,
            "<=",
            bars.TBT_RATIO,
        ),
        Row("innocent TBT p50", during.p50_s * 1e3, "ms"),
        Row("innocent TBT p50, quiet", quiet.p50_s * 1e3, "ms"),
        Row("longest time without a token in an innocent stream", during.longest_s, "s"),
    ]


def tell(outcome: Outcome) -> None:
    print(outcome.line(), flush=True)
    for problem in sorted({*outcome.problems, *outcome.harm})[:4]:
        print(f"    {problem}", flush=True)


async def run(arguments: argparse.Namespace) -> bool:
    names = arguments.names or list(ATTACKS)
    async with Arena({name: arguments.models / name for name in GOOD_MODELS}) as arena:
        if arguments.each:
            return await each(arena, names, arguments.seconds)
        return await together(arena, names, arguments.minutes, arguments.short)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks")
    parser.add_argument("names", nargs="*", help="none: all of them")
    parser.add_argument("--minutes", type=float, default=10.0, help="all at once")
    parser.add_argument("--each", action="store_true", help="one after the other instead")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each with --each")
    parser.add_argument("--models", type=Path, default=models_folder())
    arguments = read_settings(parser)
    make_models(arguments.models, print)
    return 0 if asyncio.run(run(arguments)) else 1


if __name__ == "__main__":
    sys.exit(main())
