"""Errors of the core: mistakes of the caller or of the core itself. Bad input from outside is answered with Reject."""

from __future__ import annotations


class CoreError(Exception):
    """Base of all errors of the scheduler's core."""


class ConfigError(CoreError):
    """A setting that the core cannot work with; names the field."""


class ConservationError(CoreError):
    """`check()` found tables that contradict each other: a bug in the core."""


class LogError(CoreError):
    """An event log that cannot be read; names the line."""
