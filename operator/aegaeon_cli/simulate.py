"""`aegaeon simulate`: a trace through a policy in virtual time; what of its objective was met, and where time went."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aegaeon_cli.errors import BadFileError, CliError

if TYPE_CHECKING:
    from aegaeon_simulator.device import Device
    from aegaeon_simulator.machines import More
    from aegaeon_simulator.run import Run
    from aegaeon_simulator.settings import Settings
    from aegaeon_simulator.workload import Workload

_NO_CAP = 1 << 40  # tokens
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--trace", type=_FILE, metavar="FILE", help="CSV (also .gz): t_s, model, input_len, output_len.")
@click.option("--models-file", type=_FILE, metavar="FILE", help="CSV: model, kind; also tier and weight, if given.")
@click.option("--kind", metavar="KIND", help="Kind of models whose kind is given nowhere.")
@click.option("--mix", is_flag=True, help="The paper's mix of kinds, whatever the trace says.")
@click.option("--rate", type=float, metavar="R", help="Without --trace: Poisson arrivals, R a second for each model.")
@click.option("--duration", type=float, default=300.0, show_default=True, help="Seconds of Poisson arrivals.")
@click.option("--models", type=int, metavar="M", help="The first M models.")
@click.option(
    "--policy", default="aegaeon", show_default=True, metavar="NAME", help="Which policy; a wrong name lists."
)
@click.option("--prefill", type=int, metavar="N", help="GPUs that prefill.")
@click.option("--decode", type=int, metavar="N", help="GPUs that decode.")
@click.option("--unified", type=int, metavar="N", help="GPUs that do both.")
@click.option("--device", default="h800-policy", show_default=True, metavar="NAME|FILE", help="Its constants.")
@click.option("--also", multiple=True, metavar="N:NAME|FILE", help="N more devices of another make; repeatable.")
@click.option("--host-cache", type=float, metavar="GB", help="Host memory of a node for weights.  [default: enough]")
@click.option("--disk", type=float, default=7.0, show_default=True, metavar="GB/S", help="Rate of a node's disk.")
@click.option("--slo-ttft", type=float, default=10.0, show_default=True, help="Seconds to the first token.")
@click.option("--slo-tbt", type=float, default=0.1, show_default=True, help="Seconds from token to token.")
@click.option("--slo-scale", type=float, default=1.0, show_default=True, help="Multiplies both objectives.")
@click.option("--input-scale", type=float, default=1.0, show_default=True, help="Multiplies input lengths.")
@click.option("--output-scale", type=float, default=1.0, show_default=True, help="Multiplies output lengths.")
@click.option(
    "--cap-input", type=click.IntRange(min=1), metavar="N", help="Longest input, tokens; what is more is cut."
)
@click.option("--cap-output", type=click.IntRange(min=1), metavar="N", help="Longest output, tokens.")
@click.option("--speedup", type=float, default=1.0, show_default=True, help="Divides the times of the trace.")
@click.option("--window", type=float, metavar="S", help="Only what arrives in the first S seconds (after --speedup).")
@click.option(
    "--admission",
    type=click.Choice(["none", "feasible"]),
    default="none",
    show_default=True,
    help="Refuse what would be served too late (feasible); refusals count as misses.",
)
@click.option("--drain", type=float, default=600.0, show_default=True, help="Seconds to go on after the last arrival.")
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same bytes.")
@click.option(
    "--seeds", type=int, default=1, show_default=True, metavar="K", help="K seeds from --seed on, in parallel."
)
@click.option("--json", "output", metavar="OUT", help="Write the figures there; - is standard output.")
def simulate(**given: Any) -> None:
    """Run a trace (or Poisson arrivals) through a policy, on modelled GPUs in virtual time.

    \b
    Example:
      aegaeon simulate --rate 0.1 --models 64 --policy paper --prefill 6 --decode 10 --json -
    """
    from aegaeon_simulator.errors import SimulatorError
    from aegaeon_simulator.workload import WorkloadError

    try:
        runs = [_run(given, given["seed"] + k) for k in range(_seeds(given))]
        results = _results(runs)
    except (SimulatorError, WorkloadError) as error:
        raise CliError(str(error)) from error
    _write(given["output"], results[0] if len(runs) == 1 else {"runs": results, "mean": _mean(results)})


def _seeds(given: dict[str, Any]) -> int:
    if given["seeds"] < 1:
        raise CliError(f"--seeds {given['seeds']}: at least one run is needed")
    return int(given["seeds"])


# -- what is asked for -----------------------------------------------------------------------------------------------


def _run(given: dict[str, Any], seed: int) -> Run:
    from aegaeon_simulator.device import read_device
    from aegaeon_simulator.machines import Machines
    from aegaeon_simulator.run import Run

    settings = _settings(given)
    settings.check()
    device = _with_host(read_device(given["device"]), given["host_cache"], given["disk"])
    also = tuple(_more(text, given) for text in given["also"])
    kinds = Machines.of(device, also).kinds
    return Run(settings, _workload(given, seed, kinds), device, seed, also)


def _more(text: str, given: dict[str, Any]) -> More:
    from aegaeon_simulator.device import read_device
    from aegaeon_simulator.machines import More

    count, _, name = text.partition(":")
    if not (count.isdecimal() and int(count) and name):
        raise CliError(f"--also {text}: not N:NAME; give how many, a colon, and a device, such as 4:a10")
    return More(int(count), _with_host(read_device(name), given["host_cache"], given["disk"]))


def _with_host(device: Device, cache_gb: float | None, disk_gb_per_s: float) -> Device:
    if cache_gb is None:
        return device
    if cache_gb <= 0 or disk_gb_per_s <= 0:
        raise CliError("--host-cache and --disk must be more than 0")
    return replace(device, host_cache_bytes=int(cache_gb * 1e9), disk_bytes_per_s=disk_gb_per_s * 1e9)


def _settings(given: dict[str, Any]) -> Settings:
    from aegaeon_scheduler.core.model import Slo
    from aegaeon_simulator.settings import Settings, Split, default_split

    counts = [given["prefill"], given["decode"], given["unified"]]
    split = default_split(given["policy"]) if counts == [None] * 3 else Split(*(n or 0 for n in counts))
    slo = Slo(given["slo_ttft"] * given["slo_scale"], given["slo_tbt"] * given["slo_scale"])
    return Settings(given["policy"], split, slo, given["drain"], admission=given["admission"])


def _workload(given: dict[str, Any], seed: int, known: Collection[str]) -> Workload:
    workload = _poisson(given, seed, known) if given["trace"] is None else _trace(given, known)
    if given["models_file"] is not None:
        from aegaeon_simulator.workload.terms import with_terms

        workload = with_terms(workload, given["models_file"])
    if given["mix"]:
        from aegaeon_simulator.workload.kinds import paper_kind

        workload = replace(workload, kinds=tuple(paper_kind(m) for m in range(len(workload.kinds))))
    scaled = workload.scaled(
        time=given["speedup"], input_tokens=given["input_scale"], output_tokens=given["output_scale"]
    )
    capped = scaled.capped(given["cap_input"] or _NO_CAP, given["cap_output"] or _NO_CAP)
    return capped if given["window"] is None else capped.window(given["window"])


def _poisson(given: dict[str, Any], seed: int, known: Collection[str]) -> Workload:
    from aegaeon_simulator.workload import Lengths, poisson

    if given["rate"] is None or given["models"] is None:
        raise CliError("no requests: give --trace FILE, or --rate and --models for Poisson arrivals")
    pairs = resources.files("aegaeon_simulator") / "data" / "sharegpt_pairs.csv.gz"
    with resources.as_file(pairs) as path:
        lengths = Lengths.read(path)
    kinds = _kinds(given, known)
    return poisson(
        lengths,
        models=given["models"],
        rate=given["rate"],
        duration_s=given["duration"],
        seed=seed,
        kind=lambda model: kinds[model % len(kinds)],
    )


def _kinds(given: dict[str, Any], known: Collection[str]) -> tuple[str, ...]:
    """In turn: the one that is asked for, else the paper's mix; where it is not known or --also is given, all known."""
    from aegaeon_simulator.workload.kinds import PAPER_MIX, canonical

    kind = given["kind"]
    if kind is not None:
        return (kind if kind in known else canonical(kind) or kind,)
    return PAPER_MIX if set(known) >= set(PAPER_MIX) and not given["also"] else tuple(known)


def _trace(given: dict[str, Any], known: Collection[str]) -> Workload:
    from aegaeon_simulator.workload import read_trace

    kind = given["kind"] or (next(iter(known)) if given["mix"] else None)
    workload = read_trace(given["trace"], models_file=given["models_file"], kind=kind, known=known)
    return workload if given["models"] is None else workload.first_models(given["models"])


# -- running ---------------------------------------------------------------------------------------------------------


def _results(runs: list[Run]) -> list[dict[str, Any]]:
    if len(runs) == 1:
        with _progress(_end(runs[0])) as advance:
            return [_simulate(runs[0], advance)]
    workers = min(len(runs), len(os.sched_getaffinity(0)))
    with _progress(len(runs)) as advance, ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
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
    """A bar on the terminal, over virtual seconds or runs; nothing where standard error is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda at: bar.update(task, completed=min(at, total))


# -- what is written -------------------------------------------------------------------------------------------------


def _write(output: str | None, figures: dict[str, Any]) -> None:
    text = json.dumps(figures, indent=2, sort_keys=True) + "\n"
    if output == "-":
        click.echo(text, nl=False)
        return
    if output is not None:
        try:
            Path(output).write_text(text, "utf-8")
        except OSError as error:
            raise BadFileError(f"--json {output}: cannot be written ({error})") from error
    _summary(figures.get("mean", figures))


def _summary(figures: dict[str, Any]) -> None:
    shares = figures["attainment"]
    if shares is None:
        click.echo("no request was offered")
        return
    forms = (f"{100 * shares[form]:.1f} % ({form})" for form in ("token", "request", "time"))
    click.echo(f"on time: {', '.join(forms)}")
    counts = (f"{figures['requests'][name]:g} {name}" for name in ("offered", "finished", "unserved", "refused"))
    click.echo(f"requests: {', '.join(counts)}")


def _mean(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of what is a number in every run."""
    keys = ("attainment", "requests", "gpu_seconds")
    means: dict[str, Any] = {}
    for key in keys:
        parts = [r[key] for r in results if r[key] is not None]
        means[key] = {name: sum(p[name] for p in parts) / len(parts) for name in parts[0]} if parts else None
    for key in ("switches", "prefetch_hits", "stall_s", "span_s"):
        means[key] = sum(r[key] for r in results) / len(results)
    return means
