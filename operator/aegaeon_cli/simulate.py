"""`aegaeon simulate`: runs a trace through a policy in virtual time; reports attainment and use of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aegaeon_cli.options import device_option, kind_option, number_option, slo_options, slos_option, trace_option
from aegaeon_cli.simulate_input import POISSON_S, runs_of
from aegaeon_cli.simulate_view import write

if TYPE_CHECKING:
    from aegaeon_simulator.run import Run

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@trace_option
@click.option("--models-file", type=_FILE, metavar="FILE", help="CSV: model, kind; optionally tier and weight.")
@kind_option
@click.option("--mix", is_flag=True, help="Use the paper's mix of kinds instead of the trace's.")
@number_option(
    "--rate",
    "requests per second of each model",
    "Without --trace: Poisson arrivals, R per second for each model.",
    metavar="R",
)
@number_option("--duration", "seconds", f"Seconds of Poisson arrivals.  [default: {POISSON_S:g}]", metavar="S")
@click.option("--models", type=int, metavar="M", help="Use only the first M models.")
@click.option(
    "--policy", default="slack", show_default=True, metavar="NAME", help="Policy; an unknown name lists them."
)
@click.option("--prefill", type=int, metavar="N", help="GPUs that prefill.")
@click.option("--decode", type=int, metavar="N", help="GPUs that decode.")
@click.option("--unified", type=int, metavar="N", help="GPUs that do both.")
@device_option
@click.option("--also", multiple=True, metavar="N:NAME|FILE", help="Add N devices of another make; repeatable.")
@click.option("--host-cache", type=float, metavar="GB", help="Host memory of a node for weights.  [default: unlimited]")
@click.option("--disk", type=float, default=7.0, show_default=True, metavar="GB/S", help="Rate of a node's disk.")
@slo_options
@slos_option
@number_option("--slo-scale", "a factor", "Multiplies all objectives.", default=1.0)
@number_option("--input-scale", "a factor", "Multiplies input lengths.", default=1.0)
@number_option("--output-scale", "a factor", "Multiplies output lengths.", default=1.0)
@click.option(
    "--cap-input", type=click.IntRange(min=1), metavar="N", help="Longest input in tokens; longer ones are cut."
)
@click.option(
    "--cap-output", type=click.IntRange(min=1), metavar="N", help="Longest output in tokens; longer ones are cut."
)
@number_option("--speedup", "a factor", "Divides the times of the trace.", default=1.0)
@number_option("--window", "seconds", "Use only arrivals of the first S seconds (after --speedup).", metavar="S")
@click.option(
    "--admission",
    type=click.Choice(["none", "feasible"]),
    default="none",
    show_default=True,
    help="Refuse requests that would be served too late (feasible); refusals count as misses.",
)
@click.option(
    "--kv-gate",
    type=click.IntRange(1, 100),
    metavar="PERCENT",
    help="No request begins on engines whose KV takes more of their room than this; as a GpuPool's kvGate.",
)
@click.option(
    "--drain", type=float, default=600.0, show_default=True, help="Seconds to simulate after the last arrival."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed; equal seeds give identical output."
)
@click.option(
    "--seeds", type=int, default=1, show_default=True, metavar="K", help="Run K seeds, starting at --seed, in parallel."
)
@click.option("--json", "output", metavar="OUT", help="Write the figures as JSON; - is standard output.")
def simulate(**options: Any) -> None:
    """Run a trace (or Poisson arrivals) through a policy, on modelled GPUs in virtual time.

    \b
    Example:
      aegaeon simulate --rate 0.1 --models 64 --policy paper --prefill 6 --decode 10 --json -
    """
    write(options["output"], _results(runs_of(options)))


def _results(runs: list[Run]) -> list[dict[str, Any]]:
    if len(runs) == 1:
        with _progress(_end(runs[0])) as advance:
            return [_simulate(runs[0], advance)]
    from aegaeon_simulator.parallel import cores, processes

    with _progress(len(runs)) as advance, processes(min(len(runs), cores())) as pool:
        results = []
        for done, figures in enumerate(pool.map(_simulate, runs), 1):
            results.append(figures)
            advance(done)
        return results


def _simulate(run: Run, advance: Callable[[float], None] = lambda at: None) -> dict[str, Any]:
    from aegaeon_simulator.run import result, simulate

    return result(run, simulate(run, advance))


def _end(run: Run) -> float:
    return run.workload.arrivals[-1].t_s if run.workload.arrivals else 1.0


@contextmanager
def _progress(total: float) -> Iterator[Callable[[float], None]]:
    """A progress bar over virtual seconds or runs; hidden when standard error is not a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda at: bar.update(task, completed=min(at, total))
