"""Turns a trace of one model (no model column, times in t_s or t_ms) into one that `aegaeon simulate` reads.

Run: python -m aegaeon_simulator.workload.convert FILE OUT [--model NAME] [--kind KIND]
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from aegaeon_simulator.workload.errors import TraceError
from aegaeon_simulator.workload.trace import open_text

_COLUMNS = ("t_s", "model", "model_kind", "input_len", "output_len")


def converted(path: Path, model: str, kind: str) -> Iterator[tuple[str, ...]]:
    """Rows in the columns that a trace has. Raises TraceError for a file without times or lengths."""
    try:
        with open_text(path) as file:
            reader = csv.DictReader(file)
            for row in reader:
                yield (_seconds(row), row.get("model") or model, kind, row["input_len"], row["output_len"])
    except KeyError as error:
        raise TraceError(path, 1, f"misses the column {error}; it needs t_s or t_ms, input_len, output_len") from error
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise TraceError(path, None, f"cannot be converted: {error}") from error


def _seconds(row: dict[str, str]) -> str:
    return row["t_s"] if "t_s" in row else f"{float(row['t_ms']) / 1000:.3f}"


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="FILE")
@click.argument("target", type=click.Path(path_type=Path), metavar="OUT")
@click.option("--model", default="0", show_default=True, help="Name of the model.")
@click.option("--kind", default="qwen2.5-7b", show_default=True, help="Its kind.")
def main(*, source: Path, target: Path, model: str, kind: str) -> None:
    """Write FILE as a trace of one model to OUT."""
    try:
        rows = list(converted(source, model, kind))
        with target.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([_COLUMNS, *rows])
    except (TraceError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
