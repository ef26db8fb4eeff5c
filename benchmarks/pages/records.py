"""The recorded figures: rows of benchmarks/results/*.json, made also of the files of the run
beside other systems, and the crossings of curves in docs/figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.conditions import paths_of, state_of

from aegaeon_simulator.figures.book import Book, read

Record = Mapping[str, Any]
CONDITIONS = ("commit", "date", "machine", "cores", "load", "sources")
PEER_KEYS = ("on_time", "ttft_p99_s", "mib")
CURVES = "curves"  # instead of a result file: `make figures` measures these, by panel and policy


@dataclass(frozen=True)
class Records:
    """Those of a checkout."""

    root: Path

    def names(self) -> list[str]:
        """All result files."""
        return sorted(file.stem for file in (self.root / "benchmarks" / "results").glob("*.json"))

    def rows(self, name: str) -> list[Record]:
        """Of one result file. Raises KeyError where there is none."""
        if name not in self._read:
            file = self.root / "benchmarks" / "results" / f"{name}.json"
            if not file.exists():
                raise KeyError(f"no result file {file.relative_to(self.root)}")
            stored = json.loads(file.read_text("utf-8"))
            self._read[name] = list(_peers(stored)) if isinstance(stored, dict) else stored
        return self._read[name]

    def is_old(self, name: str, row: Record) -> bool:
        """Whether what the row measures has changed since, or its state at the time is unknown."""
        return row["sources"] is None or row["sources"] != state_of(paths_of(name), self.root)

    def crossing(self, panel: str, policy: str) -> tuple[float, bool]:
        """The load at which less than 90 % of tokens are on time; or the largest that was run, False."""
        load = self._book.crossing(panel, policy, "token")
        return (max(self._book.loads(panel, policy)), False) if load is None else (load, True)

    @cached_property
    def _read(self) -> dict[str, list[Record]]:
        return {}

    @cached_property
    def _book(self) -> Book:
        return read(self.root / "docs" / "figures")


def _peers(stored: Record) -> Iterator[Record]:
    """A row for each value of each system at each load: `NAME, 0.3/s: ttft_p99_s`."""
    shared = {name: stored.get(name) for name in (*CONDITIONS, "cpu_level")}
    for system in stored["systems"]:
        for run in system["runs"]:
            for key in PEER_KEYS:
                about = {"system": system["system"], "loses": system["loses"], "key": key, "value": run[key]}
                yield {"figure": f"{system['system']}, {run['load']:g}/s: {key}", "holds": True, **about, **shared}
