"""`aegaeon bench`: commands that measure this machine with real engines and draw the results."""

from __future__ import annotations

import asyncio
import signal
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from aegaeon_cli.errors import BadFileError
from aegaeon_operator.podrunner import segments_alone

if TYPE_CHECKING:
    from aegaeon_cli.bench.batch import Switched
    from aegaeon_cli.bench.spans import Span

_FOLDER = click.Path(file_okay=False, path_type=Path)
_LOG = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line. `seconds` 0: skip the minute of a stack."""

    out: Path | None
    sequences: int
    tokens: int
    rounds: int
    seconds: float
    log: Path | None
    models: Path | None


@click.group()
def bench() -> None:
    """Measure real engines on this machine, and draw the results."""


@bench.command()
@click.option("--out", type=_FOLDER, metavar="DIR", help="Write switch.svg and minute.svg there.")
@click.option("--sequences", type=click.IntRange(1, 64), default=8, show_default=True, help="Sequences of a batch.")
@click.option(
    "--tokens", type=click.IntRange(16, 2000), default=500, show_default=True, help="Tokens of each sequence."
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=8,
    show_default=True,
    help="Number of switches; medians are printed.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.0, 600.0),
    default=60.0,
    show_default=True,
    help="Length of the run of the stack; 0: measure the switch only.",
)
@click.option("--log", type=_LOG, help="Draw this log of `aegaeon up --record` instead of running the quickstart.")
@click.option(
    "--models",
    type=_FOLDER,
    metavar="DIR",
    help="Folder of the quickstart's models.  [default: ~/.cache/aegaeon/models]",
)
def switch(
    out: Path | None, sequences: int, tokens: int, rounds: int, seconds: float, log: Path | None, models: Path | None
) -> None:
    """Measure one switch of a decode batch with its KV, then a minute of a decode engine (busy, switching, stalled).

    \b
    Example:
      aegaeon bench switch --seconds 20 --out /tmp/pictures
    """
    options = Options(out, sequences, tokens, rounds, seconds, log, models)
    if out is not None:
        from aegaeon_simulator.figures.svg import check_library

        check_library()
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadFileError(f"--out {out}: {error.strerror}") from error
    console = Console(width=None if Console().is_terminal else 120)
    with _ended_by_signals(), segments_alone(_shared_memory(), "bench") as work:
        if log is None:
            asyncio.run(_one_switch(options, work, console))
        if options.seconds:
            _minute(options, work, console)


def _shared_memory() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else Path(tempfile.gettempdir())


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C: engines are stopped and files are removed."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


async def _one_switch(options: Options, work: Path, console: Console) -> None:
    from aegaeon_cli.bench.batch import alone
    from aegaeon_cli.bench.text import timeline

    console.print(f"two models of 260 MB, {options.sequences} sequences of {options.tokens} tokens each: prefilling")
    measured = await alone(work, options.sequences, options.tokens, options.rounds)
    run = middle(measured.switches)
    console.print(timeline(run))
    console.print(summary(measured.switches))
    console.print(
        f"to a resident model, beyond its step: {measured.resident_s * 1e3:.2f} ms; "
        f"between the steps of a batch of {options.sequences}: {measured.overhead_s * 1e3:.2f} ms"
    )
    if options.out is not None:
        from aegaeon_cli.bench.plots import draw_switch

        title = f"One switch: {options.sequences} sequences of {options.tokens} tokens out and in, weights in"
        draw_switch(run, title, options.out / "switch.svg")


def middle(runs: Sequence[Switched]) -> Switched:
    """The run of median length."""
    return sorted(runs, key=lambda run: run.moved_s)[len(runs) // 2]


def summary(runs: Sequence[Switched]) -> str:
    """The figures of several switches, as medians."""
    of = statistics.median
    moved, mapping = of(r.moved_s for r in runs), of(r.mapping_s for r in runs)
    ratio = of((r.moved_s - r.mapping_s) / r.limit_s for r in runs)
    rate = of(r.plain_bytes_per_s for r in runs)
    return (
        f"all bytes in after {moved * 1e3:.1f} ms, of which mapping {mapping * 1e3:.1f} ms; the rest is {ratio:.2f} x "
        f"memcpy of the same {of(r.nbytes for r in runs) / 1e6:.0f} MB at {rate / 1e9:.1f} GB/s; "
        f"{of(r.hidden('swap-in') for r in runs):.0%} of KV in beside the weights; "
        f"first step after {of(r.of('step')[0].begin_s for r in runs) * 1e3:.1f} ms"
    )


def _minute(options: Options, work: Path, console: Console) -> None:
    from aegaeon_cli.bench.recording import busiest, record
    from aegaeon_cli.bench.text import minute

    log = options.log or work / "events.log"
    if options.log is None:
        console.print(f"the quickstart under bursts of chats for {options.seconds:.0f} s")
        asyncio.run(record(log, options.seconds, options.models))
    engine, spans, seconds = busiest(log, options.seconds)
    console.print(minute(spans, seconds))
    if options.out is not None:
        _draw_minute(engine, spans, seconds, options.out)


def _draw_minute(engine: str, spans: Sequence[Span], seconds: float, out: Path) -> None:
    from aegaeon_cli.bench.plots import draw_minute

    title = f"{seconds:.0f} s of engine {engine}: its compute lane by model, its copies below"
    draw_minute(spans, seconds, title, out / "minute.svg")
