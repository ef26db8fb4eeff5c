"""What this process takes beside its slabs: activations, workspaces, adapters, compiled kernels, the interpreter."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")


def outside_bytes() -> int:
    """Its anonymous memory; slabs and images of the host cache are files in memory, and no part of it."""
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
