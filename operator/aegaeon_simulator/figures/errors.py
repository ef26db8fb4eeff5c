"""What making the figures raises.

SimulatorError
└── FiguresError   a point that cannot be run, a folder that cannot be used, a library that is missing
"""

from __future__ import annotations

from aegaeon_simulator.errors import SimulatorError


class FiguresError(SimulatorError):
    """The figures cannot be made; says why and what to do."""
