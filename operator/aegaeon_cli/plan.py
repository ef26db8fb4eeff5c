"""`aegaeon plan`: these models, these rates, this objective, this GPU: how many GPUs, which split, what it saves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aegaeon_cli.errors import BadFileError, CliError
from aegaeon_cli.options import device_option, kind_option, number_option, slo_options, trace_option

if TYPE_CHECKING:
    from aegaeon_simulator.devices import Device
    from aegaeon_simulator.plan import Answer, ModelDemand, Objective, Traffic
    from aegaeon_simulator.plan.evaluate import Trials

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--file", "file", type=_FILE, metavar="FILE", help="YAML or CSV: kind, rate; model, tenant, count, ...")
@trace_option
@click.option("--models-file", type=_FILE, metavar="FILE", help="CSV of model and kind, for traces without kinds.")
@click.option("--models", type=int, metavar="M", help="So many models of the paper's mix, or of --kind.")
@number_option("--rate", "requests per second of each model", "Requests per second of each of --models.", metavar="R")
@kind_option
@click.option("--gpus", type=int, metavar="N", help="Look at a pool of N GPUs instead of searching.")
@click.option("--admit", metavar="KIND:RATE", help="With --gpus: can that pool take this model too?")
@click.option("--policy", default="slack", show_default=True, metavar="NAME", help="Policy of the pool.")
@device_option
@click.option("--gpus-per-device", type=int, default=1, show_default=True, help="GPUs that make up one device (TP).")
@slo_options
@click.option("--attainment", type=float, default=0.9, show_default=True, help="Share that must be on time.")
@click.option(
    "--form", type=click.Choice(["token", "request", "time"]), default="token", show_default=True, help="Of what."
)
@click.option("--confidence", type=float, default=0.95, show_default=True, help="How sure the answer must be.")
@click.option("--seeds", type=int, default=2, show_default=True, metavar="K", help="Windows of arrivals to try.")
@number_option("--window", "seconds", "Seconds of each.  [default: as rates ask for]", metavar="S")
@click.option("--price", type=float, default=2.0, show_default=True, help="Of a GPU for an hour.")
@click.option("--json", "output", metavar="OUT", help="Write the answer there; - is standard output.")
def plan(**given: Any) -> None:
    """Say how many GPUs models at given rates need, by simulating the production scheduler.

    \b
    Examples:
      aegaeon plan --models 50 --rate 0.1
      aegaeon plan --file models.yaml --slo-ttft 5 --price 3.5
      aegaeon plan --file models.yaml --gpus 6 --admit 13b:0.2
    """
    from aegaeon_simulator.errors import SimulatorError
    from aegaeon_simulator.workload import WorkloadError

    try:
        _answer(given)
    except (SimulatorError, WorkloadError) as error:
        raise CliError(str(error)) from error


def _answer(given: dict[str, Any]) -> None:
    from aegaeon_cli.plan_view import show_answer, show_plan
    from aegaeon_simulator.devices import read_device
    from aegaeon_simulator.plan import PoolEvaluator, answer_json, plan_json
    from aegaeon_simulator.plan import plan as find

    _check(given)
    device, objective = read_device(given["device"]), _objective(given)
    traffic = _traffic(given, device)
    with _workers(given["seeds"] if traffic.random else 1) as trials, _progress() as progress:
        if given["admit"] is not None:
            answer = _admission(given, traffic, device, objective, trials)
            written = answer_json(answer)
        else:
            evaluator = PoolEvaluator(traffic, device, objective, given["seeds"], trials, progress)
            found = find(evaluator, given["policy"], given["gpus"])
            written = plan_json(found, evaluator, given["price"], given["gpus_per_device"])
    _write(given["output"], written)
    if given["output"] != "-":
        if given["admit"] is not None:
            show_answer(written)
        else:
            show_plan(written)


def _check(given: dict[str, Any]) -> None:
    sources = [name for name in ("file", "trace", "models") if given[name] is not None]
    if len(sources) != 1:
        raise CliError("give the models once: --file FILE, --trace FILE, or --models M with --rate R")
    if (given["models"] is None) != (given["rate"] is None):
        raise CliError("--models and --rate go together: so many models, each with this rate")
    if given["models"] is not None and given["models"] < 1:
        raise CliError(f"--models {given['models']}: at least one model is needed")
    if given["gpus"] is not None and given["gpus"] < 1:
        raise CliError(f"--gpus {given['gpus']}: a pool needs at least one GPU; leave it out to have the number found")
    if given["gpus_per_device"] < 1:
        raise CliError(f"--gpus-per-device {given['gpus_per_device']}: a device is at least one GPU")
    if not 0 <= given["price"] < float("inf"):
        raise CliError(f"--price {given['price']:g}: give what a GPU costs for an hour, 0 or more")
    if given["admit"] is not None and given["gpus"] is None:
        raise CliError("--admit asks about a pool; give its size with --gpus N")


def _objective(given: dict[str, Any]) -> Objective:
    from aegaeon_scheduler.core.domain import Slo
    from aegaeon_simulator.plan import Objective

    slo = Slo(given["slo_ttft"], given["slo_tbt"])
    objective = Objective(slo, given["attainment"], given["form"], given["confidence"])
    objective.check()
    return objective


# -- what is asked for -----------------------------------------------------------------------------------------------


def _traffic(given: dict[str, Any], device: Device) -> Traffic:
    from aegaeon_simulator.plan import ModelDemand, poisson_traffic, read_models, trace_traffic
    from aegaeon_simulator.workload import Lengths, read_trace
    from aegaeon_simulator.workload.kinds import paper_kind

    if given["trace"] is not None:
        trace = read_trace(
            given["trace"], models_file=given["models_file"], kind=given["kind"], known=device.kinds.keys()
        )
        return trace_traffic(trace, given["window"])
    if given["file"] is not None:
        models = read_models(given["file"], device.kinds.keys())
    else:
        own = None if given["kind"] is None else _kind(given["kind"], device)
        count, rate = given["models"], given["rate"]
        models = [ModelDemand(f"model-{m:03}", own or paper_kind(m), rate) for m in range(count)]
    return poisson_traffic(models, Lengths.packaged(), given["window"])


def _kind(name: str, device: Device) -> str:
    from aegaeon_simulator.workload.kinds import canonical

    kind = name if name in device.kinds else canonical(name)
    if kind is None or kind not in device.kinds:
        raise CliError(f"unknown kind {name!r}; device {device.name} knows {', '.join(sorted(device.kinds))}")
    return kind


def _candidate(text: str, device: Device) -> ModelDemand:
    from aegaeon_simulator.plan import ModelDemand

    kind, _, rate = text.partition(":")
    try:
        return ModelDemand("the candidate", _kind(kind, device), float(rate))
    except ValueError:
        raise CliError(f"--admit {text}: write KIND:RATE, for example 13b:0.2") from None


def _admission(given: dict[str, Any], traffic: Traffic, device: Device, objective: Objective, trials: Trials) -> Answer:
    from aegaeon_simulator.plan import Pool, can_admit
    from aegaeon_simulator.settings import Split
    from aegaeon_simulator.workload import Lengths

    pool = Pool(Split(unified=given["gpus"]), device, given["policy"])
    candidate = _candidate(given["admit"], device)
    asked = [model for model in traffic.models if model.rate > 0]
    lengths, seeds, window_s = Lengths.packaged(), given["seeds"], given["window"]
    return can_admit(pool, asked, candidate, objective, lengths, seeds=seeds, window_s=window_s, trials=trials)


# -- running and telling ---------------------------------------------------------------------------------------------


@contextmanager
def _workers(seeds: int) -> Iterator[Trials]:
    """Seeds in processes of their own, as many as there are cores."""
    from aegaeon_simulator.parallel import cores, processes
    from aegaeon_simulator.plan.evaluate import one_by_one
    from aegaeon_simulator.plan.measure import sample

    count = min(seeds, cores())
    if count < 2:
        yield one_by_one
        return
    with processes(count) as pool:
        yield lambda trials: list(pool.map(sample, trials))


@contextmanager
def _progress() -> Iterator[Any]:
    """Which pool is being tried, on the terminal; nothing where standard error is no terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("simulating") as status:
        yield lambda what: status.update(f"simulating {what}")


def _write(output: str | None, answer: dict[str, Any]) -> None:
    text = json.dumps(answer, indent=2, sort_keys=True) + "\n"
    if output == "-":
        click.echo(text, nl=False)
    elif output is not None:
        try:
            Path(output).write_text(text, "utf-8")
        except OSError as error:
            raise BadFileError(f"--json {output}: cannot be written ({error})") from error
