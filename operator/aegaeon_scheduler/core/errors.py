"""What the core raises. Bad input from outside is answered with Reject; these are mistakes of caller or core."""

from __future__ import annotations


class CoreError(Exception):
    """Base of all errors of the scheduler's core."""


class ConfigError(CoreError):
    """A setting that the core cannot work with; names the field."""


class ConservationError(CoreError):
    """`check()` found tables that contradict each other: a bug in the core."""


class LogError(CoreError):
    """An event log that cannot be read; names the line."""
