"""The figures so far as a table for people, written anew after every stage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu_day.state import State
from benchmarks.gpu_day.where import Where


def read_figures(where: Where) -> list[dict[str, Any]]:
    """All rows that stages wrote, in their order."""
    if not where.figures.exists():
        return []
    return [json.loads(text) for text in where.figures.read_text("utf-8").splitlines()]


def last(where: Where, stage: str, figure: str) -> float | None:
    """The latest value of a figure; None: it was not measured."""
    found = [float(row["value"]) for row in read_figures(where) if (row["stage"], row["figure"]) == (stage, figure)]
    return found[-1] if found else None


def write_summary(where: Where, state: State) -> None:
    """report.md of the folder."""
    lines = ["| stage | outcome | seconds |", "|---|---|---|"]
    for name, outcome in state.outcomes().items():
        record = state[name]
        lines.append(f"| {name} | {outcome} | {record.seconds if record else 0:g} |")
    lines += ["", "| stage | figure | value | limit | ratio | bar |", "|---|---|---|---|---|---|"]
    lines += _rows(read_figures(where), where.small)
    draft = where.out / "report.new"
    draft.write_text("\n".join(lines) + "\n", "utf-8")
    draft.replace(where.out / "report.md")


def _rows(figures: list[dict[str, Any]], small: bool) -> Iterator[str]:
    for row in figures:
        limit = "" if row["limit"] is None else f"{row['limit']:.4g} {row['unit']}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
        held = "" if row["bar"] is None or small else f"{row['bar']}: {'holds' if row['holds'] else 'missed'}"
        yield f"| {row['stage']} | {row['figure']} | {row['value']:.4g} {row['unit']} | {limit} | {ratio} | {held} |"
