"""Errors around the core.

SchedulerError
├── ConfigError     the configuration file cannot be used
├── ListenError     an address cannot be bound
├── RequestError    what an administrator asks for makes no sense
└── ReplacedError   a sidecar in whose place another one came, which lives
"""

from __future__ import annotations


class SchedulerError(Exception):
    """Root of this package's errors; the message says what is wrong, where, and what to do."""


class ConfigError(SchedulerError):
    """The configuration file cannot be read or used."""


class ListenError(SchedulerError):
    """An address to serve on cannot be bound."""


class RequestError(SchedulerError):
    """A call of Admin that makes no sense; it ends with INVALID_ARGUMENT."""


class ReplacedError(SchedulerError):
    """A process that started later has the name of this sidecar; the stream ends with ALREADY_EXISTS."""
