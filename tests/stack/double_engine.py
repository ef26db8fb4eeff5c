"""An engine whose GPU is the double of the driver, a library that DRIVER names: `python -m stack.double_engine`.

Slabs, copies and page locks are the double's; steps are computed by the CPU in that memory, and the probe of a suspect
GPU leaves out the products, for which the double has no kernels.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import partial
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.utils.dlpack import from_dlpack

from aegaeon_native import CudaDevice, cuda_uuid
from aegaeon_sidecar import device_probe, process, quarantine
from aegaeon_sidecar.backends import torch as torch_backend
from aegaeon_sidecar.backends.torch import TorchBackend, backend, cache
from aegaeon_sidecar.engine import engine
from aegaeon_sidecar.memory import gpu

QUICK_S = 1.0  # before the first probe
DRIVER = "DRIVER_DOUBLE"
RULES, PROBE_RULES = "FAKE_CUDA_RULES", "PROBE_RULES"  # files of what is to fail, see fake_cuda.hpp


def in_host_memory(capsule: object) -> Tensor:
    """The double's memory, which is the host's, in place of the GPU's that its slabs claim to be."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    device = (ctypes.c_int32 * 2).from_address(pointer(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p))
    device[0], device[1] = 1, 0  # kDLCPU
    return from_dlpack(capsule)


def _on_cpu(device: str, **settings: Any) -> TorchBackend:
    return TorchBackend(device="cpu", **settings)


def nothing(*_: object) -> None:
    """In place of what only a GPU's own libraries can do."""


if __name__ == "__main__":
    driver = os.environ[DRIVER]
    gpu.CudaDevice = partial(CudaDevice, driver=driver)  # type: ignore[misc,assignment]  # no seam but for tests
    gpu.cuda_uuid = partial(cuda_uuid, driver=driver)
    if "--device" in sys.argv:
        os.environ[RULES] = os.environ[PROBE_RULES]
        device_probe.check_products = nothing
        sys.exit(device_probe.main())
    quarantine.PROBE, quarantine.FIRST_PAUSE_S = "stack.double_engine", QUICK_S
    patch.object(torch_backend, "TorchBackend", _on_cpu).start()
    backend.from_dlpack = cache.from_dlpack = in_host_memory
    engine.memory_infos = lambda *_: ()
    engine.enter = nothing
    sys.exit(process.main())
