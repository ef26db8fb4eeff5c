"""Errors of making figures.

SimulatorError
└── FiguresError   a point that cannot be run, a folder that cannot be used, a library that is missing
"""

from __future__ import annotations

from aegaeon_simulator.errors import SimulatorError


class FiguresError(SimulatorError):
    """The figures cannot be made; the message gives the problem and the remedy."""
