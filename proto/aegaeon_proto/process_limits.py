"""Limits of a process that reads untrusted input, set by itself before it does.

CPU time has two timers. At the first an exception ends Python code, such as a chat template, and says where it was. The
second kills the process, for native code that does not return to the interpreter. Both count CPU time, not wall time: a
busy machine fails no request.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE = 1.25  # the second timer, as a multiple of the first
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class TimeLimitReached(BaseException):
    """The CPU time of this piece of work is used up."""


def die_with_parent() -> None:
    """Send SIGKILL to this process when the thread that forked it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def become_subreaper() -> None:
    """Adopt processes below this one whose parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def lower_priority() -> None:
    """Run only on processors that are otherwise idle (lowest priority). Cannot be undone."""
    os.nice(19)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def raise_oom_score() -> None:
    """Let the kernel kill this process before the gateway when memory runs out."""
    Path("/proc/self/oom_score_adj").write_text("1000")


def limit_address_space(allowed_bytes: int) -> None:
    """Let the address space grow by `allowed_bytes` over what it is; allocations beyond that fail."""
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + allowed_bytes, resource.RLIM_INFINITY))


def lift_address_space_limit() -> None:
    """Lift the limit of `limit_address_space`."""
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def raise_on_cpu_timer() -> None:
    """Make the first timer an exception; once per process, in its main thread."""
    signal.signal(signal.SIGPROF, _raise)
    signal.signal(signal.SIGVTALRM, signal.SIG_DFL)


@contextmanager
def cpu_time(seconds: float) -> Iterator[None]:
    """Raises TimeLimitReached inside when the CPU time is used up; native code is killed with the process."""
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds * _GRACE)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise TimeLimitReached


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def _address_space() -> int:
    """Bytes of this process' address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES
