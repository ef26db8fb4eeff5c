"""`python -m fuzz`: every target for MINUTES, JOBS side by side; executions, crashes, hangs, leaks beside their bars.

An input that a target fails on is kept in its corpus, so that tests fail until the parser is fixed. Inputs that
reached new code are kept in a cache folder: the next run begins with them, so that short runs explore further.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.report import Row, read_settings, report
from fuzz.table import TARGETS
from fuzz.target import Target

LEAK_BYTES = 64 << 20  # growth over the second half of a run; the fuzzer's own corpus grows as well
NO_COVERAGE = "Is the code instrumented for coverage?"  # as libFuzzer asks after the seeds
KEPT = 2000  # inputs of a target in the cache folder; the oldest are removed
TAIL_S = 120.0  # beyond the time: the start, and an input that hangs
_FAILED = ("crash-", "timeout-", "oom-", "leak-")  # slow units are the machine's: a time limit is set
_EXECUTIONS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one target."""

    name: str
    executions: int
    failed: tuple[Path, ...]  # inputs, as kept in the corpus
    growth_bytes: int
    problem: str  # why it ended without having fuzzed; empty when it did
    log: str


async def fuzz(target: Target, seconds: int, cache: Path) -> Run:
    """In a process of its own; inputs that fail go into the target's corpus, those that reach new code into `cache`."""
    found = cache / target.name
    found.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="aegaeon-fuzz-", dir="/dev/shm") as name:
        work = Path(name)
        command = (sys.executable, "-m", "fuzz.one", target.name, str(seconds), str(work), str(found))
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
        try:
            async with asyncio.timeout(seconds + TAIL_S):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            output, _ = await process.communicate()
        log = output.decode(errors="replace")
        remove_oldest(found, KEPT)
        failed = tuple(_keep(target, file) for file in sorted(work.iterdir()) if file.name.startswith(_FAILED))
        counted = _EXECUTIONS.search(log)
        samples = [tuple(map(float, each.split())) for each in _lines(work / "rss")]
        executions = int(counted[1]) if counted else int(samples[-1][1]) if samples else 0
        problem = "" if process.returncode == 0 or failed else f"ended with status {process.returncode}"
        if not problem and NO_COVERAGE in log:
            problem = "the parser is not instrumented: no input, not even a seed, reached code of it"
        return Run(target.name, executions, failed, _growth(samples), problem, log)


def remove_oldest(folder: Path, keep: int) -> None:
    """Of the files of a folder the newest `keep` stay."""
    newest_first = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    for file in newest_first[keep:]:
        file.unlink()


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _growth(samples: list[tuple[float, ...]]) -> int:
    """Of the memory, from the half of the run to its end."""
    return int(samples[-1][2] - samples[len(samples) // 2][2]) if len(samples) > 8 else 0


def _keep(target: Target, file: Path) -> Path:
    target.corpus.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(file, target.corpus / file.name[:24]))


async def run_all(targets: list[Target], seconds: int, jobs: int, cache: Path) -> list[Run]:
    slots = asyncio.Semaphore(jobs)

    async def one(target: Target) -> Run:
        async with slots:
            run = await fuzz(target, seconds, cache)
            state = run.problem or (
                f"FAILED on {', '.join(file.name for file in run.failed)}" if run.failed else "held"
            )
            print(
                f"{run.name:<20} {run.executions:>10,} executions, {run.growth_bytes >> 20:>3} MiB more: {state}",
                flush=True,
            )
            if run.failed or run.problem:
                print(_excerpt(run.log), flush=True)
            return run

    return list(await asyncio.gather(*(one(target) for target in targets)))


def _excerpt(log: str) -> str:
    """The Python exception, or the last lines."""
    at = log.find("=== Uncaught Python exception")
    return (log[at : at + 3000] if at >= 0 else log[-2000:]).strip()


def rows(runs: list[Run], minutes: float) -> list[Row]:
    """Figures of this run. The bar of a million executions in all is of ten minutes each."""
    total = sum(run.executions for run in runs)
    wanted = 1_000_000 if minutes >= 10 else None
    return [
        Row("executions of all parsers", total, "executions", wanted),
        Row("parsers that were fuzzed", len([run for run in runs if not run.problem]), "parsers", len(runs)),
        Row("minutes each", minutes, "min", 10 if minutes >= 10 else None),
        Row("inputs that crash, hang or take too much memory", sum(len(run.failed) for run in runs), "inputs", 0, "<="),
        Row("parsers that leak", sum(run.growth_bytes > LEAK_BYTES for run in runs), "parsers", 0, "<="),
        *(Row(f"executions of {run.name}", run.executions, "executions") for run in runs),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; none: all")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each target")
    parser.add_argument("--jobs", type=int, default=1, help="targets side by side")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="inputs of earlier runs; none: begin with the seeds")
    arguments = read_settings(parser)
    chosen = [TARGETS[name] for name in arguments.targets] or list(TARGETS.values())
    with TemporaryDirectory(prefix="aegaeon-fuzz-") as empty:
        cache = arguments.cache or Path(empty)
        runs = asyncio.run(run_all(chosen, round(60 * arguments.minutes), arguments.jobs, cache))
    figures = rows(runs, arguments.minutes)
    return 0 if report("fuzz", figures, arguments.short) else 1


if __name__ == "__main__":
    sys.exit(main())
