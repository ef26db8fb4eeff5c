"""A double of Triton's launcher: what it refuses and which binaries it would compile, without a GPU.

Types and specialisations of arguments are found by Triton's own binder. A pointer is accessible where the process has
its first byte mapped: of an unmapped one `cuPointerGetAttribute` says CUDA_ERROR_INVALID_VALUE, on which the launcher
of Triton 3.6 and 3.7 raises ValueError (triton/backends/nvidia/driver.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature

_HOPPER = CUDABackend(GPUTarget("cuda", 90, 32))


class Launcher:
    """Stands for a kernel. `run`: pointers are looked at, and the interpreter computes.

    `binaries`: a key for each that was launched; `aligned`: arguments that one was compiled for as multiples of 16.
    """

    def __init__(self, kernel: InterpretedFunction, run: bool) -> None:
        compiled: Any = JITFunction(kernel.fn, **{k: v for k, v in kernel.kwargs.items() if k == "do_not_specialize"})
        self._bind = create_function_from_signature(compiled.signature, compiled.params, _HOPPER)
        self._kernel, self._run = kernel, run
        self.arg_names: list[str] = kernel.arg_names
        self.binaries: set[str] = set()
        self.aligned: set[str] = set()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            bound, types, rest = self._bind(*args, **options)
            constants = [value for value, (kind, *_) in zip(bound.values(), types, strict=True) if kind == "constexpr"]
            self.binaries.add(repr((types, constants, sorted(rest.items()))))
            self.aligned |= {name for name, (_, special) in zip(bound, types, strict=True) if special == "D"}
            if self._run:
                _look_at_pointers(bound.values())
                self._kernel[grid](*args, **options)

        return launch


def _look_at_pointers(values: Iterable[Any]) -> None:
    for at, value in enumerate(values):
        if isinstance(value, torch.Tensor) and not is_mapped(value.data_ptr()):
            raise ValueError(f"Pointer argument (at {at}) cannot be accessed from Triton (cpu tensor?)")


def is_mapped(address: int) -> bool:
    """Whether this process may read the byte there. A range that is reserved alone has a mapping without rights."""
    for line in Path("/proc/self/maps").read_text("ascii", errors="replace").splitlines():
        span, rights = line.split()[:2]
        first, end = (int(part, 16) for part in span.split("-"))
        if first <= address < end:
            return rights.startswith("r")
    return False
