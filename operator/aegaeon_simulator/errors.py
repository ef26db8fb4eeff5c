"""What the simulator raises."""

from __future__ import annotations


class SimulatorError(Exception):
    """Base of all errors of the simulator."""


class WireViolationError(SimulatorError):
    """The scheduler sent a command whose preconditions do not follow from its fences: a bug in the core."""
