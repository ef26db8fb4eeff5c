"""What a campaign can find out."""

from __future__ import annotations


class ChaosError(Exception):
    """The pool did not do within a time what it must; the message says what."""


class MissedError(Exception):
    """A fault had no effect, or nothing to meet: it does not count."""
