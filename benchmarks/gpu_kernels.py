"""A step by its kernels: how many, and their own time by kind; the rest of the step lies between them.

CUPTI, by which torch's profiler sees kernels, may slow launches for good: a benchmark profiles at its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from benchmarks.report import Row
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_KINDS = {
    "products": re.compile(r"gemm|gemv|nvjet|cutlass|splitk", re.IGNORECASE),
    "attention": re.compile(r"^_(attend_split|join|write)"),  # of backends/torch/paged.py
}
OTHER = "other kernels"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A run of one."""

    name: str
    seconds: float


def profiled(action: Callable[[], object]) -> list[Kernel]:
    """The kernels that ran on a device meanwhile, those of graphs too; none without a device."""
    if not torch.cuda.is_available():
        return []
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        action()
    return [
        Kernel(event.name, event.time_range.elapsed_us() / 1e6)
        for event in seen.events() or ()
        if event.device_type == DeviceType.CUDA and not event.name.startswith(("Memcpy", "Memset"))
    ]


def kernel_rows(name: str, kernels: Sequence[Kernel], steps: int, step_s: float) -> list[Row]:
    """A step's, of so many that were profiled; `step_s`: of one that was not. None without kernels."""
    if not kernels:
        return []
    own_s = sum(kernel.seconds for kernel in kernels) / steps
    return [
        Row(f"{name}: kernels", len(kernels) / steps, "kernels"),
        *(Row(f"{name}: {kind}", 1e3 * seconds / steps, "ms") for kind, seconds in _by_kind(kernels)),
        Row(f"{name}: between kernels", 1e3 * (step_s - own_s), "ms"),
    ]


def _by_kind(kernels: Sequence[Kernel]) -> Iterable[tuple[str, float]]:
    for kind in (*_KINDS, OTHER):
        yield kind, sum(kernel.seconds for kernel in kernels if _kind(kernel.name) == kind)


def _kind(name: str) -> str:
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(name)), OTHER)
