"""What the simulator raises.

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
    """Constants of a device are missing or make no sense; says where and what to do."""


class SettingsError(SimulatorError):
    """What was asked for cannot be simulated; says why and what to do."""
