"""The double of NVIDIA's driver that the native tests have, for Python: what is page-locked is counted, and refused."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from aegaeon_native import CudaDevice

NATIVE = Path(__file__).parents[2] / "native"
NOT_SUPPORTED = 801


class _Live(ctypes.Structure):
    """FakeLive of fake_cuda.hpp."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in ("contexts", "modules", "handles", "mappings", "reservations", "locked", "streams", "events")
    )


class DriverDouble:
    """Compiled into a folder; one world for all devices that are opened with it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "libfake_cuda.so"
        sources = [str(NATIVE / "cpp_tests" / name) for name in ("fake_cuda.cpp", "fake_cuda_streams.cpp")]
        options = ["-std=c++20", "-shared", "-fPIC", "-pthread", f"-I{NATIVE / 'include'}"]
        subprocess.run([os.environ.get("CXX", "c++"), *options, *sources, "-o", str(path)], check=True)
        self._library = ctypes.CDLL(str(path))
        self._library.fake_live.restype = _Live
        self.gpu = CudaDevice(0, driver=str(path))

    @property
    def locked(self) -> int:
        """How many pieces of memory are page-locked."""
        return int(self._library.fake_live().locked)

    def refuse_lock(self) -> None:
        """The next attempt to lock pages fails, as on a GPU that does not know such locks."""
        self._library.fake_fail(b"cuMemHostRegister_v2", NOT_SUPPORTED, 0)
