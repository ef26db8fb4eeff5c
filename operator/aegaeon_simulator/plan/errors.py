"""Errors of planning, each one sentence with a remedy for the person who asked.

SimulatorError
└── PlanError        a question that cannot be answered as it is put
    └── FileError    a file of models, a line, what is wrong with it
"""

from __future__ import annotations

from pathlib import Path

from aegaeon_simulator.errors import SimulatorError


class PlanError(SimulatorError):
    """A question that cannot be answered as it is put."""


class FileError(PlanError):
    """A file of models that cannot be used; names the file and, where there is one, the line (from 1)."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        where = f"{path}" if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {problem}")
