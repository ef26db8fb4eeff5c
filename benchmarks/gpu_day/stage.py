"""What the processes of stages share: their arguments, their figures, and the exit status that says how it went."""

from __future__ import annotations

import argparse

from benchmarks.gpu_day.where import Where, add_where, read_where
from benchmarks.report import BARS_MISSED, Figures

ENTRY = "from aegaeon_cli.main import main; main()"
"""for `python -c`: `aegaeon`, also where only its folders are on the path"""


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """With the options that every stage has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_where(parser)
    return parser


def begin(name: str, arguments: argparse.Namespace) -> tuple[Where, Figures]:
    """Where it runs, and its figures under this name."""
    where = read_where(arguments)
    return where, Figures(name, where.figures)


def status(figures: Figures, small: bool) -> int:
    """Of the process. Small sizes are held to no bar."""
    return 0 if small or figures.hold else BARS_MISSED
