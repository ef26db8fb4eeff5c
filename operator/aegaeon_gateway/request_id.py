"""The id of the request that is being handled, in every line that is logged for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s [%(request)s]: %(message)s"
"""for handlers that have RequestIdFilter"""
_NONE = "-"
_current: ContextVar[str] = ContextVar("request", default=_NONE)


class RequestIdFilter(logging.Filter):
    """Gives each record the attribute `request`: "-" outside of requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request = _current.get()
        return True


@contextmanager
def logged_as(request: str) -> Iterator[None]:
    """Mark log lines inside, in this task and those that it starts, with this request."""
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)
