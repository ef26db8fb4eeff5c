"""Where a plan runs: its folders, the device, and whether sizes are small ones that show that everything runs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Where:
    """`out`: what is worth keeping, at most eight files; `work`: models and scratch. `device`: as torch names it.
    `layers`: of the pool's models, 0: all."""

    out: Path
    work: Path
    device: str
    small: bool
    layers: int = 0

    @property
    def figures(self) -> Path:
        """Every figure of every stage, a JSON line each."""
        return self.out / "figures.jsonl"

    @property
    def constants(self) -> Path:
        """The device file: what `aegaeon calibrate` writes and `aegaeon simulate --device` reads."""
        return self.out / "device.json"

    @property
    def models(self) -> Path:
        return self.work / "models"

    def replies(self, name: str) -> Path:
        """What a pool answered: the trace, the tokens of every request and their times."""
        return self.out / f"{name}.json"

    def options(self) -> tuple[str, ...]:
        """The arguments of a stage's process, which `read_where` reads."""
        given = ("--out", str(self.out), "--work", str(self.work), "--device", self.device)
        cut = ("--layers", str(self.layers)) if self.layers else ()
        return (*given, *cut, "--small") if self.small else (*given, *cut)


def add_where(parser: argparse.ArgumentParser) -> None:
    """The options of `read_where`."""
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--work", type=Path, required=True, help="folder of models and scratch")
    parser.add_argument("--device", default="cuda:0", help="cpu, or cuda:N")
    parser.add_argument("--small", action="store_true", help="small sizes that show that it runs; no bar is held")
    parser.add_argument("--layers", type=int, default=0, help="cut the pool's models to so many: a first look")


def read_where(arguments: argparse.Namespace) -> Where:
    """Of parsed arguments; makes the folders."""
    where = Where(
        arguments.out.absolute(), arguments.work.absolute(), arguments.device, arguments.small, arguments.layers
    )
    where.out.mkdir(parents=True, exist_ok=True)
    where.models.mkdir(parents=True, exist_ok=True)
    return where
