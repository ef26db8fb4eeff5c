"""One point of a figure: all inputs of a run as plain values, so that its hash identifies it."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Union

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.figures.errors import FiguresError
from aegaeon_simulator.run import Run
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Arrival, Lengths, Workload, poisson, read_trace
from aegaeon_simulator.workload.kinds import PAPER_MIX, QWEN_7B, paper_kind
from aegaeon_simulator.workload.trace import open_text


@dataclass(frozen=True, slots=True)
class Poisson:
    """`models` processes of `rate` requests a second each, lengths drawn from the ShareGPT pairs."""

    models: int
    rate: float
    duration_s: float
    input_scale: float = 1.0
    output_scale: float = 1.0
    mix: tuple[str, ...] = PAPER_MIX


@dataclass(frozen=True, slots=True)
class Trace:
    """A file of the data folder. `window_s` after `speedup`; `single`: it has no model column; 0 models: all."""

    file: str
    models_file: str = ""
    models: int = 0
    speedup: float = 1.0
    window_s: float = 0.0
    mix: bool = False
    single: bool = False
    most_input: int = 0
    most_output: int = 0


Work = Union[Poisson, Trace]


@dataclass(frozen=True, slots=True)
class Point:
    """One run: policy, devices, objective, requests. Seconds."""

    policy: str
    device: str
    split: Split
    slo: Slo
    work: Work
    seed: int = 0
    drain_s: float = 600.0


def run_of(point: Point, data: Path) -> Run:
    """The run that a point stands for; `data` is where the traces are. Raises SimulatorError and WorkloadError."""
    device = read_device(point.device)
    settings = Settings(point.policy, point.split, point.slo, point.drain_s)
    settings.check()
    return Run(settings, _workload(point, data), device, point.seed)


def _workload(point: Point, data: Path) -> Workload:
    return _poisson(point.work, point.seed) if isinstance(point.work, Poisson) else _trace(point.work, data)


def _poisson(work: Poisson, seed: int) -> Workload:
    drawn = poisson(
        Lengths.packaged(),
        models=work.models,
        rate=work.rate,
        duration_s=work.duration_s,
        seed=seed,
        kind=lambda m: work.mix[m % len(work.mix)],
    )
    return drawn.scaled(input_tokens=work.input_scale, output_tokens=work.output_scale)


def _trace(work: Trace, data: Path) -> Workload:
    path = data / work.file
    if not path.is_file():
        raise FiguresError(f"{path}: no such trace; set --data to the folder benchmarks/data of the repository")
    models_file = data / work.models_file if work.models_file else None
    workload = _single(path) if work.single else read_trace(path, models_file=models_file, kind=QWEN_7B)
    if work.mix:
        workload = replace(workload, kinds=tuple(paper_kind(m) for m in range(len(workload.kinds))))
    if work.models:
        workload = workload.first_models(work.models)
    workload = workload.scaled(time=work.speedup)
    if work.window_s:
        workload = workload.window(work.window_s)
    return workload.capped(work.most_input, work.most_output) if work.most_input else workload


def _single(path: Path) -> Workload:
    """A trace of one model, times in t_s or t_ms."""
    with open_text(path) as file:
        rows = [
            Arrival(
                float(row["t_s"]) if "t_s" in row else float(row["t_ms"]) / 1000,
                0,
                max(1, int(row["input_len"])),
                max(1, int(row["output_len"])),
            )
            for row in csv.DictReader(file)
        ]
    return Workload((QWEN_7B,), tuple(rows))
