"""Results by the hash of their inputs: settings, trace, code. An interrupted run resumes."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import aegaeon_scheduler.core
import aegaeon_simulator
from aegaeon_proto.engine import catalog
from aegaeon_scheduler.core.config import LatencyConstants
from aegaeon_simulator.figures.errors import FiguresError
from aegaeon_simulator.figures.points import Point, Trace
from aegaeon_simulator.settings import PRODUCTION

_NOT_RUN = ("figures", "plan")  # packages of the simulator that decide no run
_OF_BASELINES = ("domain.py", "slo.py")  # of the core: all that a baseline takes from it, beside LatencyConstants
CORE_ALONE = ("engine", "pool")  # packages of the simulator: what only the production core runs on


class Cache:
    """A folder with one JSON file for each point."""

    def __init__(self, folder: Path, data: Path) -> None:
        self._folder = folder
        self._data = data
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FiguresError(f"--cache {folder}: cannot be created ({error})") from error

    def get(self, point: Point) -> dict[str, Any] | None:
        """The point's result, if it is cached."""
        path = self._path(point)
        if not path.exists():
            return None
        result: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return result

    def put(self, point: Point, result: dict[str, Any]) -> None:
        """Store a result atomically."""
        path = self._path(point)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(result, sort_keys=True), "utf-8")
        part.replace(path)

    def _path(self, point: Point) -> Path:
        trace = _digest_of(self._data / point.work.file) if isinstance(point.work, Trace) else ""
        key = json.dumps([asdict(point), type(point.work).__name__, trace, code_version(point.policy)], default=str)
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


@cache
def code_version(policy: str) -> str:
    """A hash of the sources that decide the runs of a policy, without those that only other policies use."""
    core, simulator = Path(aegaeon_scheduler.core.__path__[0]), Path(aegaeon_simulator.__path__[0])
    digest = hashlib.sha256(inspect.getsource(LatencyConstants).encode())
    for path in sorted(Path(catalog.__file__).parent.rglob("*.py")):  # types of the core and of the simulator
        digest.update(path.read_bytes())
    for path in sorted(core.rglob("*.py")):
        if _of_core(path.relative_to(core).parts, policy):
            digest.update(path.read_bytes())
    for path in sorted(p for p in simulator.rglob("*") if p.suffix in (".py", ".json", ".gz")):
        if _of_simulator(path.relative_to(simulator).parts, policy):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _of_core(parts: tuple[str, ...], policy: str) -> bool:
    if policy not in PRODUCTION:
        return parts[-1] in _OF_BASELINES
    return len(parts) < 3 or parts[1] == policy  # each policy's package has its name; neither uses the other's


def _of_simulator(parts: tuple[str, ...], policy: str) -> bool:
    other = "baselines" if policy in PRODUCTION else None
    return parts[0] not in (*_NOT_RUN, other) and (policy in PRODUCTION or parts[0] not in CORE_ALONE)


@cache
def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
