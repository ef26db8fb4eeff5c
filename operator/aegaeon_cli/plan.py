"""`aegaeon plan`: the GPUs and the split that models at given rates need for an objective, and the saving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aegaeon_cli.errors import CliError
from aegaeon_cli.options import device_option, kind_option, number_option, slo_options, slos_option, trace_option
from aegaeon_cli.results import write_json

if TYPE_CHECKING:
    from aegaeon_simulator.devices import Device
    from aegaeon_simulator.plan import Answer, ModelDemand, Objective, Traffic
    from aegaeon_simulator.plan.evaluate import Trials

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--file", "file", type=_FILE, metavar="FILE", help="YAML or CSV: kind, rate; model, tenant, count, ...")
@trace_option
@click.option("--models-file", type=_FILE, metavar="FILE", help="CSV of model and kind, for traces without kinds.")
@click.option("--models", type=int, metavar="M", help="Number of models, of the paper's mix or of --kind.")
@number_option("--rate", "requests per second of each model", "Requests per second of each of --models.", metavar="R")
@kind_option
@click.option("--gpus", type=int, metavar="N", help="Evaluate a pool of N GPUs instead of searching.")
@click.option("--admit", metavar="KIND:RATE", help="With --gpus: check whether that pool can admit this model.")
@click.option("--policy", default="slack", show_default=True, metavar="NAME", help="Policy of the pool.")
@device_option
@click.option(
    "--gpus-per-device", type=int, default=1, show_default=True, help="GPUs of one device (tensor parallelism)."
)
@slo_options
@slos_option
@click.option("--attainment", type=float, default=0.9, show_default=True, help="Share that must be on time.")
@click.option(
    "--form",
    type=click.Choice(["token", "request", "time"]),
    default="token",
    show_default=True,
    help="Unit of that share.",
)
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Confidence of the answer.")
@click.option("--seeds", type=int, default=2, show_default=True, metavar="K", help="Windows of arrivals to simulate.")
@number_option("--window", "seconds", "Seconds of each window.  [default: chosen from the rates]", metavar="S")
@click.option("--price", type=float, default=2.0, show_default=True, help="Price of a GPU per hour.")
@click.option("--json", "output", metavar="OUT", help="Write the answer as JSON; - is standard output.")
def plan(**options: Any) -> None:
    """Find how many GPUs models at given rates need, by simulating the production scheduler.

    \b
    Examples:
      aegaeon plan --models 50 --rate 0.1
      aegaeon plan --file models.yaml --slo-ttft 5 --price 3.5
      aegaeon plan --file models.yaml --gpus 6 --admit 13b:0.2
    """
    from aegaeon_cli.plan_view import show_answer, show_plan
    from aegaeon_simulator.devices import read_device
    from aegaeon_simulator.plan import PoolEvaluator, answer_json, plan_json
    from aegaeon_simulator.plan import plan as find

    _check(options)
    device, objective = read_device(options["device"]), _objective(options)
    traffic = _with_slos(_traffic(options, device), options["slos"], objective)
    with _workers(options["seeds"] if traffic.random else 1) as trials, _progress() as progress:
        if options["admit"] is not None:
            answer = _admission(options, traffic, device, objective, trials)
            written = answer_json(answer)
        else:
            evaluator = PoolEvaluator(traffic, device, objective, options["seeds"], trials, progress)
            chosen = find(evaluator, options["policy"], options["gpus"])
            written = plan_json(chosen, evaluator, options["price"], options["gpus_per_device"])
    write_json(options["output"], written)
    if options["output"] != "-":
        if options["admit"] is not None:
            show_answer(written)
        else:
            show_plan(written)


def _check(options: dict[str, Any]) -> None:
    sources = [name for name in ("file", "trace", "models") if options[name] is not None]
    if len(sources) != 1:
        raise CliError("name the models in exactly one way: --file FILE, --trace FILE, or --models M with --rate R")
    if (options["models"] is None) != (options["rate"] is None):
        raise CliError("--models and --rate are needed together: the number of models, and the rate of each")
    if options["models"] is not None and options["models"] < 1:
        raise CliError(f"--models {options['models']}: at least one model is needed")
    if options["gpus"] is not None and options["gpus"] < 1:
        raise CliError(f"--gpus {options['gpus']}: a pool needs at least one GPU; omit --gpus to search for the number")
    if options["gpus_per_device"] < 1:
        raise CliError(f"--gpus-per-device {options['gpus_per_device']}: a device is at least one GPU")
    if not 0 <= options["price"] < float("inf"):
        raise CliError(f"--price {options['price']:g}: must be the price of a GPU per hour, 0 or more")
    if options["admit"] is not None and options["gpus"] is None:
        raise CliError("--admit needs the size of the pool: --gpus N")


def _objective(options: dict[str, Any]) -> Objective:
    from aegaeon_scheduler.core.domain import Slo
    from aegaeon_simulator.plan import Objective

    slo = Slo(options["slo_ttft"], options["slo_tbt"])
    objective = Objective(slo, options["attainment"], options["form"], options["confidence"])
    objective.check()
    return objective


# -- input -----------------------------------------------------------------------------------------------------------


def _traffic(options: dict[str, Any], device: Device) -> Traffic:
    from aegaeon_simulator.plan import ModelDemand, poisson_traffic, read_models, trace_traffic
    from aegaeon_simulator.workload import Lengths, read_trace
    from aegaeon_simulator.workload.kinds import paper_kind

    if options["trace"] is not None:
        trace = read_trace(
            options["trace"], models_file=options["models_file"], kind=options["kind"], known=device.kinds.keys()
        )
        return trace_traffic(trace, options["window"])
    if options["file"] is not None:
        models = read_models(options["file"], device.kinds.keys())
    else:
        own = None if options["kind"] is None else _kind(options["kind"], device)
        count, rate = options["models"], options["rate"]
        models = [ModelDemand(f"model-{m:03}", own or paper_kind(m), rate) for m in range(count)]
    return poisson_traffic(models, Lengths.packaged(), options["window"])


def _with_slos(traffic: Traffic, file: Path | None, objective: Objective) -> Traffic:
    """The objectives of a file, before those that models have of their own."""
    if file is None:
        return traffic
    from aegaeon_simulator.plan import with_slos

    return with_slos(traffic, file, objective.slo)


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


def _admission(
    options: dict[str, Any], traffic: Traffic, device: Device, objective: Objective, trials: Trials
) -> Answer:
    from aegaeon_simulator.plan import Pool, can_admit
    from aegaeon_simulator.settings import Split
    from aegaeon_simulator.workload import Lengths

    pool = Pool(Split(unified=options["gpus"]), device, options["policy"])
    candidate = _candidate(options["admit"], device)
    active = [model for model in traffic.models if model.rate > 0]
    lengths, seeds, window_s = Lengths.packaged(), options["seeds"], options["window"]
    return can_admit(pool, active, candidate, objective, lengths, seeds=seeds, window_s=window_s, trials=trials)


# -- output ---------------------------------------------------------------------------------------------------------


@contextmanager
def _workers(seeds: int) -> Iterator[Trials]:
    """Run the seeds in separate processes, one per core at most."""
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
    """Show the pool being simulated on the terminal; nothing when standard error is not a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("simulating") as status:
        yield lambda what: status.update(f"simulating {what}")
