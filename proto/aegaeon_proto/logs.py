"""The log of a process, from the level on that AEGAEON_LOG_LEVEL names: debug, info or warning."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

VARIABLE = "AEGAEON_LOG_LEVEL"
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}
_PACKAGES = ("operator", "scheduler", "gateway", "picker", "kube", "sidecar", "proto")


class LogLevelError(ValueError):
    """A level that does not exist."""


def configure(
    environment: Mapping[str, str], form: str = FORMAT, handlers: Collection[logging.Handler] | None = None
) -> None:
    """Write to standard error, or to `handlers`. `debug` is of this project's modules: some libraries write credentials
    at that level. Raises LogLevelError for another level."""
    name = environment.get(VARIABLE) or "info"
    if name not in _LEVELS:
        raise LogLevelError(f"{VARIABLE} is {name!r}; it must be {', '.join(_LEVELS)}")
    logging.basicConfig(level=max(_LEVELS[name], logging.INFO), format=form, handlers=handlers)
    for package in _PACKAGES:
        logging.getLogger(f"aegaeon_{package}").setLevel(_LEVELS[name])
