"""Raised for messages that break the contract."""

from __future__ import annotations


class ProtocolError(Exception):
    """A peer sent something that the contract of v1/ does not allow; its stream ends with INVALID_ARGUMENT."""
