"""The simulator held against the real stack: the same short trace through both, attainment and switches side by side.

Real: tiny models, real processes, steps and loads padded to a GPU's pace (or not), a client that notes when a token
reaches it. Simulated: constants of `aegaeon calibrate` on this machine, and what models take through all processes
(control, gateway, GIL), probed on the same stack with as many models at once as there are engines. The objective is
chosen by simulation, before anything is compared. Each real run has a simulation of its own, of what was probed right
before and after it, with steps as long as its engines reported them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks.paced.sitecustomize import LOAD_BYTES_PER_S
from benchmarks.report import Row, read_settings, report
from benchmarks.truth_cases import CASES, PACED, Case, pace
from benchmarks.truth_machine import Machine, as_run, between, through_the_stack, uneven
from benchmarks.truth_stack import Reply, moves, probe, replay, switches, write_models
from benchmarks.truth_stack import write_manifests as manifests

from aegaeon_cli.demo.stack import Stack, free_port
from aegaeon_cli.models import make_models
from aegaeon_operator.spec import load_manifests
from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.log import read
from aegaeon_scheduler.core.slo import Attainment, attainment
from aegaeon_simulator.devices import Device, read_device
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings
from aegaeon_simulator.workload import Arrival, Workload

TTFT_OF_TBT = 20.0  # the objective's shape: time to the first token, in steps
WANTED = 0.82  # attainment of tokens that the objective is chosen for: the middle of 70 to 95 %
RUNS = 3
FORMS = ("token", "request", "time")
VOID_S = 0.1  # the client itself was held up so long: others had the machine, the run says nothing
SWITCHES = 0.10  # of them, allowed
DRAWS = 9  # simulations beside a real run: one alone is off by 3 points


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, real or simulated. `late_s`: how late the client sent at worst, which tells of a machine held up."""

    attained: Attainment
    switches: int
    ttft_s: float
    span_s: float
    late_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A real run and its simulation, with the machine as it was probed around the run."""

    seen: Figures
    expected: Figures
    machine: Machine


def trace(
    names: list[str],
    rate: float,
    seconds: float,
    seed: int,
    prompts: tuple[int, int] = (16, 96),
    outputs: tuple[int, int] = (20, 120),
) -> Workload:
    """Poisson arrivals at `rate` a second for each model; lengths in tokens, drawn evenly."""
    chosen = random.Random(seed)
    arrivals = []
    for model in range(len(names)):
        at = chosen.expovariate(rate)
        while at < seconds:
            arrivals.append(Arrival(at, model, chosen.randint(*prompts), chosen.randint(*outputs)))
            at += chosen.expovariate(rate)
    return Workload(tuple(names), tuple(sorted(arrivals, key=lambda a: a.t_s)), tuple(names))


# -- constants -------------------------------------------------------------------------------------------------------


def calibrated(folder: Path, models: Path) -> Device:
    """`aegaeon calibrate` on these manifests, with the pace of loads where that is given."""
    output = folder / "aegaeon" / "constants.json"
    command = ["calibrate", "-f", str(folder), "--models", str(models), "-o", str(output)]
    entry = "from aegaeon_cli.main import main; main()"
    subprocess.run([sys.executable, "-c", entry, *command], check=True, stdout=subprocess.DEVNULL)
    found = read_device(str(output))
    if str(PACED) not in os.environ.get("PYTHONPATH", ""):
        return found
    paced = {
        n: replace(k, latency=replace(k.latency, load_bytes_per_s=LOAD_BYTES_PER_S)) for n, k in found.kinds.items()
    }
    return replace(found, kinds=paced)


def write_constants(folder: Path, device: Device) -> None:
    """What the scheduler begins with, in the folder where `aegaeon up` looks."""
    entries = [{"model": name, "device": "cpu", **asdict(kind.latency)} for name, kind in device.kinds.items()]
    (folder / "aegaeon").mkdir()
    (folder / "aegaeon" / "constants.json").write_text(json.dumps({"constants": entries}))


# -- both ways -------------------------------------------------------------------------------------------------------


def simulated(machine: Machine, workload: Workload, case: Case, slo: Slo, delay_s: float) -> Figures:
    """The trace in virtual time."""
    settings = Settings(case.policy, case.split, slo, delay_s=delay_s)
    outcome = simulate(Run(settings, workload, machine.device))
    times = [[t + machine.gateway_s for t in r.times] for r in outcome.requests]
    changed = sum(len(used.stalls) for used in outcome.usage[case.split.prefill :])
    return _figures(times, workload, slo, changed, outcome.span_s, 0.0)


def foreseen(machine: Machine, workload: Workload, case: Case, slo: Slo, delay_s: float) -> Figures:
    """Medians of simulations whose steps differ by what a probe does not tell."""
    chosen = random.Random(0)
    found = [simulated(uneven(machine, chosen), workload, case, slo, delay_s) for _ in range(DRAWS)]
    token, request, share = (median(getattr(f.attained, form) for f in found) for form in FORMS)
    attained = Attainment(token, request, share, found[0].attained.requests)
    switched = round(median(f.switches for f in found))
    return Figures(attained, switched, median(f.ttft_s for f in found), median(f.span_s for f in found), 0.0)


async def real(stack: Stack, names: list[str], workload: Workload, slo: Slo) -> Figures:
    """The trace through the stack."""
    before, began = await switches(stack.state.scheduler), time.monotonic()
    replies: list[Reply] = await replay(stack.state.url, names, workload)
    wrong = [reply.error for reply in replies if reply.error]
    if wrong:
        print(f"{len(wrong)} requests failed, first: {wrong[0]}", flush=True)
    late_s = max(reply.late_s for reply in replies)
    changed = await switches(stack.state.scheduler) - before
    return _figures([r.times for r in replies], workload, slo, changed, time.monotonic() - began, late_s)


def _figures(
    times: list[list[float]], workload: Workload, slo: Slo, changed: int, span_s: float, late_s: float
) -> Figures:
    found = attainment((t, slo, a.output_tokens) for t, a in zip(times, workload.arrivals, strict=True))
    return Figures(found, changed, median(t[0] for t in times if t), span_s, late_s)


def choose(machine: Machine, workload: Workload, case: Case, delay_s: float) -> Slo:
    """The objective that the simulator says WANTED of the tokens meet, by bisection over TBT."""
    low, high = 0.002, 1.0
    for _ in range(8):
        middle = (low * high) ** 0.5
        slo = Slo(TTFT_OF_TBT * middle, middle)
        if simulated(machine, workload, case, slo, delay_s).attained.token < WANTED:
            low = middle
        else:
            high = middle
    tbt_s = round(high, 4)
    return Slo(TTFT_OF_TBT * tbt_s, tbt_s)


@contextmanager
def manifest_folder(case: Case, slo: Slo) -> Iterator[Path]:
    """Manifests for the length of a `with`."""
    with tempfile.TemporaryDirectory() as folder:
        manifests(Path(folder), case.policy, slo, case.engines, case.copies)
        os.environ["XDG_CACHE_HOME"] = folder  # where `aegaeon up` finds the constants
        yield Path(folder)


async def compare(arguments: argparse.Namespace, case: Case) -> list[Row]:
    """One case: calibrate, choose the objective, run both, put them side by side."""
    with manifest_folder(case, Slo(2.0, 0.1)) as folder:
        names = [model.name for model in load_manifests(folder, arguments.models).pools[0].models]
        workload = trace(names, arguments.rate or case.rate, arguments.seconds, arguments.seed)
        raw = calibrated(folder, arguments.models)
        async with Stack(folder, arguments.models, free_port()) as stack:
            machine = through_the_stack(raw, await probe(stack.state.url, names, together=case.engines))
    slo = choose(machine, workload, case, arguments.delay)
    bare = simulated(Machine(raw, 0.0), workload, case, slo, arguments.delay)
    print(f"{case.name}: {len(workload.arrivals)} requests, TTFT {slo.ttft_s:g} s, TBT {slo.tbt_s:g} s", flush=True)
    show("  simulated, calibrate alone", bare)
    pairs, void = await _real_runs(arguments, case, names, workload, slo, raw)
    if not pairs:
        sys.exit(f"the machine was held up in all {void} runs; try again when it has less to do")
    return [*rows(case, raw, bare, pairs), Row(f"{case.name}: void runs", void, "runs")]


async def _real_runs(
    arguments: argparse.Namespace, case: Case, names: list[str], workload: Workload, slo: Slo, raw: Device
) -> tuple[list[Pair], int]:
    """As many as wanted that say something, of twice as many; and how many did not."""
    pairs: list[Pair] = []
    void = 0
    with manifest_folder(case, slo) as folder:
        write_constants(folder, raw)
        for index in range(2 * arguments.runs):
            log = folder / "aegaeon" / f"events-{index}.log"
            async with Stack(folder, arguments.models, free_port(), record=log) as stack:
                before = await probe(stack.state.url, names, 2, case.engines)  # everything is loaded once
                moved, begun = moves(log), _events(log)
                run = await real(stack, names, workload, slo)
                moved, ended = {what: n - moved[what] for what, n in moves(log).items()}, _events(log)
                after = await probe(stack.state.url, names, 2, case.engines)
            probed = through_the_stack(raw, between(before, after))
            show("  simulated, as probed", foreseen(probed, workload, case, slo, arguments.delay))
            machine = as_run(probed, islice(read(log), begun, ended))
            expected = foreseen(machine, workload, case, slo, arguments.delay)
            show("  real" if run.late_s < VOID_S else "  real, void", run)
            print("   ", ", ".join(f"{what} {n}" for what, n in moved.items()), flush=True)
            show("  simulated", expected)
            void += run.late_s >= VOID_S
            pairs += [Pair(run, expected, machine)] * (run.late_s < VOID_S)
            if len(pairs) == arguments.runs:
                break
    return pairs, void


def _events(log: Path) -> int:
    """How many it has by now; a header is before them."""
    return log.read_bytes().count(b"\n") - 1


def show(what: str, figures: Figures) -> None:
    """One line for people."""
    a = figures.attained
    print(
        f"{what}: on time {100 * a.token:.1f} / {100 * a.request:.1f} / {100 * a.time:.1f} %, {figures.switches} "
        f"switches, TTFT p50 {1000 * figures.ttft_s:.0f} ms, {figures.span_s:.1f} s, "
        f"client late {1000 * figures.late_s:.0f} ms",
        flush=True,
    )


def rows(case: Case, raw: Device, bare: Figures, pairs: list[Pair]) -> list[Row]:
    """Side by side, with the limits: medians, and those of the differences."""
    what = case.name
    seen, expected = [p.seen for p in pairs], [p.expected for p in pairs]
    token, foretold = (100 * median(f.attained.token for f in side) for side in (seen, expected))
    changed, predicted = (median(f.switches for f in side) for side in (seen, expected))
    apart = abs(median(100 * (p.seen.attained.token - p.expected.attained.token) for p in pairs))
    off = abs(median((p.seen.switches - p.expected.switches) / max(1, p.seen.switches) for p in pairs))
    own, steps = (
        [1000 * (k.latency.a + k.latency.c) for k in d.kinds.values()] for d in (raw, pairs[0].machine.device)
    )
    return [
        Row(f"{what}: tokens on time, real, median of {len(pairs)}", token, "%"),
        Row(f"{what}: tokens on time, simulated", foretold, "%"),
        Row(f"{what}: tokens on time, simulated with calibrate alone", 100 * bare.attained.token, "%"),
        Row(f"{what}: attainment, simulated and real apart", apart, "points", case.points, "<="),
        Row(f"{what}: switches, real, median", changed, "switches"),
        Row(f"{what}: switches, simulated", predicted, "switches"),
        Row(f"{what}: switches, simulated and real apart", 100 * off, "%", 100 * SWITCHES, "<="),
        Row(f"{what}: a step of one sequence by calibrate, median", median(own), "ms"),
        Row(f"{what}: a step of one sequence through the stack, median", median(steps), "ms"),
        Row(f"{what}: way through gateway and control", 1000 * pairs[0].machine.gateway_s, "ms"),
        Row(f"{what}: spread of the real runs", _spread(seen), "points"),
        Row(f"{what}: spread of their simulations", _spread(expected), "points"),
    ]


def _spread(seen: list[Figures]) -> float:
    tokens = [100 * f.attained.token for f in seen]
    return max(tokens) - min(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of `aegaeon models make`")
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--rate", type=float, help="requests per second of each model, instead of the case's")
    parser.add_argument("--seconds", type=float, default=30.0, help="of arrivals")
    parser.add_argument("--delay", type=float, default=0.0005, help="seconds from scheduler to engine, one way")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = read_settings(parser)
    made = arguments.models.absolute()
    make_models(made, print)
    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in (CASES[name] for name in arguments.case or CASES):
            arguments.models = write_models(made, Path(folder), case.copies)
            with pace(case):
                found += asyncio.run(compare(arguments, case))
    sys.exit(0 if report("truth", found, arguments.short) else 1)


if __name__ == "__main__":
    main()
