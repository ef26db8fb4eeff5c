"""Errors of the simulator.

SimulatorError
├── WireViolationError   the scheduler's core broke a rule of the wire: a bug
├── DeviceError          device constants that cannot be used
└── SettingsError        a policy, split or objective that cannot be simulated
"""

from __future__ import annotations


class SimulatorError(Exception):
    """Base of all errors of the simulator."""


class WireViolationError(SimulatorError):
    """The scheduler sent a command whose preconditions do not follow from its fences: a bug in the core."""


class DeviceError(SimulatorError):
    """Constants of a device are missing or invalid; the message gives the place and the remedy."""


class SettingsError(SimulatorError):
    """Settings that cannot be simulated; the message gives the problem and the remedy."""
