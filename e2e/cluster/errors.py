"""What can go wrong while a cluster comes up."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster cannot be made or found; the message says what to do."""
