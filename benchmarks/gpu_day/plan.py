"""The stages in their order: what the most depends on comes first. The claims (tokens, switches, the simulator's
prediction) before what they rest on is measured by itself, sweeps last. `calibrate` is before `pool`: by its device
file the pool chooses an objective that a part of the tokens misses. Usual seconds are those of an H200 (2026-11-28).

A stage is a process: what breaks it, a fault of the driver included, ends no other. Each has a limit in seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_day.where import Where

SKIPPED = 4
"""exit status of a stage for which the machine lacks something, which it names"""
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Stage:
    """`command`: arguments of this Python. `limit_s`: then it is ended. `usual_s`: it is begun only with as much time
    left. `environment`: beside the process's own."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    usual_s: float
    environment: tuple[tuple[str, str], ...] = ()


def stages(where: Where) -> tuple[Stage, ...]:
    """All of them."""
    return (
        _of(where, "probes", 60, 15),
        _of(where, "models", 150, 55, "make_models"),
        _of(where, "calibrate", 150, 70),
        _of(where, "pool", 240, 140, "pool", "--roles", "unified"),
        _of(where, "verify", 240, 45, "verify", "--of", "pool"),
        _of(where, "simulate", 60, 20),
        _bench(where, "switch", 90, 25),
        _bench(where, "beside", 60, 20),
        _bench(where, "decode", 120, 30),
        _of(where, "assumptions", 100, 35),
        _of(where, "test-gpu", 200, 60, "tests"),
        _bench(where, "copies", 60, 15),
        _bench(where, "prefill", 90, 20),
        _bench(where, "draws", 60, 30),
        _of(where, "roles", 240, 140, "pool", "--roles", "split"),
        _of(where, "verify-roles", 240, 50, "verify", "--of", "roles"),
        _bench(where, "engine", 120, 60),
        _bench(where, "attention", 120, 60),
        _bench(where, "load", 90, 30),
        _bench(where, "decode-sweep", 240, 90, "decode", "--sweep"),
        _bench(where, "prefill-sweep", 240, 90, "prefill", "--sweep"),
        _of(where, "sanitizer", 300, 120),
    )


def chosen(plan: Sequence[Stage], names: Sequence[str] | None) -> list[Stage]:
    """The stages of these names, in this order; None: all. Raises ValueError for a name that the plan has not."""
    if names is None:
        return list(plan)
    by_name = {stage.name: stage for stage in plan}
    if unknown := [name for name in names if name not in by_name]:
        raise ValueError(f"no stage is called {', '.join(unknown)}; there are {', '.join(by_name)}")
    return [by_name[name] for name in names]


def _of(where: Where, name: str, limit_s: float, usual_s: float, module: str = "", *more: str) -> Stage:
    """A module of this package."""
    command = ("-m", f"benchmarks.gpu_day.{module or name}", *where.options(), *more)
    return Stage(name, command, limit_s, 0.0 if where.small or where.layers else usual_s)


def _bench(where: Where, name: str, limit_s: float, usual_s: float, module: str = "", *more: str) -> Stage:
    """A GPU benchmark, its figures kept with the others."""
    given = ("--device", where.device, "--figures", str(where.figures), *(("--small",) if where.small else ()))
    command = ("-m", f"benchmarks.gpu_{module or name}", *given, *more)
    interpreted = (("TRITON_INTERPRET", "1"),) if (name, where.device) == ("attention", "cpu") else ()
    return Stage(name, command, limit_s, 0.0 if where.small else usual_s, interpreted)


def python(stage: Stage) -> list[str]:
    """Its whole command line."""
    return [sys.executable, *stage.command]


def root() -> Path:
    """Where stages run: the repository's root."""
    return _ROOT
