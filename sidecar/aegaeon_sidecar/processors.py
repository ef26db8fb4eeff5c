"""Processors beside the one that an engine computes with."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds in so many, or max
_MOST = 8
"""products of a decode step read weights: more processors wait for memory"""


def spare_processors(engines: int, quota: Path = _QUOTA) -> int:
    """The number of this machine's processors, or of its container's, that may help with the products of one of
    `engines` engines, beside its own. 0 engines: how many there are is not known, and none may."""
    return max(min(_allowed(quota) // engines, _MOST) - 1, 0) if engines else 0


def _allowed(quota: Path) -> int:
    processors = len(os.sched_getaffinity(0))
    try:
        time, period = quota.read_text("ascii").split()
    except (OSError, ValueError):  # no container's, or of another version of cgroups
        return processors
    return processors if time == "max" else min(processors, max(int(time) // int(period), 1))
