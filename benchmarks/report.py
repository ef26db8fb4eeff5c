"""How every benchmark tells its figures: beside their limits on the screen, and as JSON in benchmarks/results, a file
for each level of processors: NAME.json with AVX-512, NAME-avx2.json without. Runs that were shortened write the same
files to build/results: what is recorded, and shown on the pages (`benchmarks.pages`), is of whole runs.

A limit is either a fixed number or a peer measured in the same run; the bar says what value / limit must be.
Benchmarks run from the repository's root: `python -m benchmarks.NAME`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.conditions import ROOT, conditions

from aegaeon_native import cpu_level

RESULTS = Path(__file__).parent / "results"
SHORTENED = ROOT / "build" / "results"
BARS_MISSED = 3
"""exit status of a benchmark that ran to its end, with figures that miss their bars"""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `limit` None: reported for the record, holds always. `threshold` is in units of the limit."""

    figure: str
    value: float
    unit: str
    limit: float | None = None
    sense: Literal[">=", "<="] = ">="
    threshold: float = 1.0

    @property
    def ratio(self) -> float | None:
        return None if not self.limit else self.value / self.limit

    @property
    def holds(self) -> bool:
        if self.limit is None:
            return True
        bar = self.limit * self.threshold
        return self.value >= bar if self.sense == ">=" else self.value <= bar

    @property
    def bar(self) -> str | None:
        return None if self.limit is None else f"{self.sense} {self.threshold:g} x limit"

    def as_json(self) -> dict[str, float | str | bool | None]:
        """With the level of the processor that computed it."""
        return {
            "figure": self.figure,
            "value": self.value,
            "unit": self.unit,
            "limit": self.limit,
            "ratio": self.ratio,
            "bar": self.bar,
            "holds": self.holds,
            "cpu_level": cpu_level(),
        }


def line(row: Row) -> str:
    """One row for people: figure, value, limit, bar and whether it holds."""
    head = f"{row.figure:<58} {row.value:>14,.4g} {row.unit:<12}"
    if row.limit is None:
        return f"{head} (for the record)"
    return f"{head} limit {row.limit:>12,.4g}  {row.bar:<16} {'holds' if row.holds else 'MISSED'}"


def read_settings(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line's. `short`: whether one of them makes the run another than the recorded one: any that is not its
    default, but for folders and programs, the seed and the number of jobs."""
    chosen = parser.parse_args()
    chosen.short = any(
        value != parser.get_default(name) and not isinstance(value, Path)
        for name, value in vars(chosen).items()
        if name not in ("seed", "jobs")
    )
    return chosen


def result_file(name: str, short: bool = False) -> Path:
    """Of this processor's level. `short`: of a run that was shortened."""
    level = cpu_level()
    return (SHORTENED if short else RESULTS) / (f"{name}.json" if level == "avx512" else f"{name}-{level}.json")


class Figures:
    """Rows as they come: each is printed and written at once, so that an early end of the process loses none.

    `file`: JSON lines that rows are appended to, with the name and the time; None: `result_file`. Conditions are those
    of the begin: what is measured changes the load.
    """

    def __init__(self, name: str, file: Path | None = None, short: bool = False) -> None:
        self._name, self._file, self._short = name, file, short
        self._conditions = conditions(name)
        self._rows: list[Row] = []

    @property
    def hold(self) -> bool:
        """Whether all of them do."""
        return all(row.holds for row in self._rows)

    def add(self, *rows: Row) -> None:
        """Print them and write them."""
        for row in rows:
            print(line(row), flush=True)
        self._rows += rows
        if self._file is None:
            file = result_file(self._name, self._short)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps([row.as_json() | self._conditions for row in self._rows], indent=2) + "\n")
        else:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.writelines(json.dumps(self._line(row)) + "\n" for row in rows)

    def _line(self, row: Row) -> dict[str, object]:
        return {"stage": self._name, "at": round(time.time(), 1), **row.as_json(), **self._conditions}


def report(name: str, rows: Sequence[Row], short: bool = False) -> bool:
    """Print the rows, write the `result_file`, and say whether all of them hold."""
    figures = Figures(name, short=short)
    figures.add(*rows)
    return figures.hold
