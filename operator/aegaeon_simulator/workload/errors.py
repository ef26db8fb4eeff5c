"""Errors of workloads, each one sentence for the person who gave the file.

SimulatorError
└── WorkloadError
    └── TraceError   a file, a line, what is wrong with it
"""

from __future__ import annotations

from pathlib import Path

from aegaeon_simulator.errors import SimulatorError


class WorkloadError(SimulatorError, ValueError):
    """A workload that cannot be simulated."""


class TraceError(WorkloadError):
    """A trace file that cannot be used; names the file and, where there is one, the line (1 is the header)."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        where = f"{path}" if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {problem}")
