"""Keeps the measured table of docs/engine-memory.md as benchmarks/results/*.json have it. Run by `make generate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "engine-memory.md"
BENCHES = ("copies", "kv_copies", "switch", "load", "cache", "engine", "prefix", "slabs", "slab_sizes")
BEGIN, END = "<!-- measured: made by `make generate` -->\n", "<!-- /measured -->"


def main() -> None:
    """Replace what stands between the marks."""
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(head + BEGIN + "\n" + "\n".join(table()) + "\n\n" + END + tail, "utf-8")


def table() -> Iterator[str]:
    """A row for every figure of these benchmarks that was recorded."""
    yield "| benchmark | figure | value | bar | |\n|---|---|---|---|---|"
    for bench in BENCHES:
        file = ROOT / "benchmarks" / "results" / f"{bench}.json"
        for row in json.loads(file.read_text("utf-8")):
            yield line(bench, row)


def line(bench: str, row: dict[str, Any]) -> str:
    """One figure; a bar is a number, or so many times what was measured in the same run."""
    figure = row["figure"].removeprefix(f"{bench}: ")
    bar = "" if row["limit"] is None else f"{row['bar'].split()[0]} {bound(row)}"
    kept = "" if row["limit"] is None else ("holds" if row["holds"] else "**missed**")
    return f"| `{bench}` | {figure} | {row['value']:,.4g} {row['unit']} | {bar} | {kept} |"


def bound(row: dict[str, Any]) -> str:
    """`0.5 ms`; `0.9 x 19.9 GB/s` where the limit was measured too."""
    factor = float(row["bar"].split()[1])
    limit = f"{row['limit']:,.3g} {row['unit']}"
    return limit if factor == 1 else f"{factor:g} x {limit}"


if __name__ == "__main__":
    main()
