"""What a page's field says: `<!--switch.copy-->0.99<!--/-->` is the field `copy` of [fields.switch] in figures.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from benchmarks.conditions import TABLE
from benchmarks.pages.records import CURVES, Record, Records

FIELD = re.compile(r"<!--([a-z0-9_-]+)\.([a-z0-9_-]+)(?::(bar|held|run))?-->(.*?)<!--/-->")
OLD = "†"
_COMBINED: Mapping[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max}


class FieldError(Exception):
    """A page or the table of figures is wrong; the text says where and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One entry of the table. `figure`: how the row's figure begins, or several of them; with `of` all rows that begin
    so are combined, else it must be one. `times`: the page's unit in the result's."""

    figure: str | list[str] = ""
    key: str = "value"
    of: str = ""
    times: float = 1.0
    format: str = "{:.2f}"
    panel: str = ""
    policy: str = ""


@dataclass(frozen=True)
class Fields:
    """The table, over the records of a checkout."""

    records: Records

    def text(self, file: str, name: str, about: str | None) -> str:
        """What stands in a field. `about`: `bar`, `held` or `run` instead of the figure itself."""
        entry = self._entry(file, name)
        if file == CURVES:
            load, fell = self.records.crossing(entry.panel, entry.policy)
            return ("" if fell else "over ") + entry.format.format(entry.times * load)
        rows = self._rows(file, entry)
        if about == "run":
            return self.run(file, rows)
        if about == "held":
            return "holds" if all(row["holds"] for row in rows) else "**missed**"
        if about == "bar":
            if rows[0]["limit"] is None:
                raise FieldError(f"{TABLE.name}, {file}.{name}: its row has no bar, so :bar says nothing")
            return _bar(rows[0], entry)
        values = [row[entry.key] for row in rows if row[entry.key] is not None]
        return entry.format.format(entry.times * (_COMBINED[entry.of](values) if entry.of else values[0]))

    def run(self, file: str, rows: list[Record]) -> str:
        """The date of a run, marked where what it measures has changed since."""
        old = any(self.records.is_old(file, row) for row in rows)
        return (min(row["date"] or "unknown" for row in rows)) + f" {OLD}" * old

    def rows_of(self, file: str, name: str) -> list[Record]:
        """The rows behind a field; none for curves, whose page has its own conditions."""
        return [] if file == CURVES else self._rows(file, self._entry(file, name))

    def _entry(self, file: str, name: str) -> Figure:
        if name not in self.table.get(file, {}):
            raise FieldError(f"{TABLE.name} has no field {file}.{name}: add it below [fields.{file}]")
        return self.table[file][name]

    def _rows(self, file: str, entry: Figure) -> list[Record]:
        begins = tuple([entry.figure] if isinstance(entry.figure, str) else entry.figure)
        try:
            rows = self.records.rows(file)
        except KeyError as error:
            raise FieldError(f"{TABLE.name}, [fields.{file}]: {error.args[0]}") from error
        fit = [row for row in rows if row["figure"] in begins] or [r for r in rows if r["figure"].startswith(begins)]
        if not fit or (len(fit) > 1 and not entry.of):
            raise FieldError(f"{TABLE.name}, [fields.{file}]: {len(fit)} rows begin with {entry.figure!r}, not one")
        return fit

    @cached_property
    def table(self) -> Mapping[str, Mapping[str, Figure]]:
        table = tomllib.loads(TABLE.read_text("utf-8"))["fields"]
        return {file: {name: Figure(**entry) for name, entry in named.items()} for file, named in table.items()}


def _bar(row: Record, entry: Figure) -> str:
    """So many times its limit, where the limit was measured too; else the limit, in the page's unit."""
    sense, threshold = row["bar"].split()[:2]
    return f"{'at least' if sense == '>=' else 'at most'} " + (
        threshold if entry.key == "ratio" else f"{entry.times * row['limit'] * float(threshold):,.6g}"
    )
