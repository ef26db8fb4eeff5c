"""The double of NVIDIA's driver that the native tests have, for Python: two GPUs, counted and refused as there."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from aegaeon_cli.folders import cache_folder
from aegaeon_native import CudaDevice

NATIVE = Path(__file__).parents[2] / "native"
READ_ONLY_LOCKS = 113  # CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED
NOT_SUPPORTED = 801


class _Live(ctypes.Structure):
    """FakeLive of fake_cuda.hpp."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in ("contexts", "handles", "mappings", "reservations", "locked", "streams", "events")
    )


def compiled_double() -> Path:
    """Made once for each state of its sources: five files take ten seconds, and many tests want a copy of their own."""
    sources = sorted((NATIVE / "cpp_tests").glob("fake_cuda*.cpp"))
    read = [*sources, *sorted((NATIVE / "cpp_tests").glob("fake_cuda*.hpp")), NATIVE / "include/aegaeon/cuda/api.hpp"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in read)).hexdigest()
    made = cache_folder() / f"driver-double-{digest[:16]}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            library = Path(folder) / made.name
            options = ["-std=c++20", "-fPIC", "-pthread", "-shared", f"-I{NATIVE / 'include'}"]
            subprocess.run([os.environ.get("CXX", "c++"), *options, *sources, "-o", library], check=True)
            library.replace(made)  # others may have made it meanwhile
    return made


class DriverDouble:
    """A copy in a folder; one world for all devices that are opened with it. `gpu` and `other` are its two."""

    def __init__(self, folder: Path) -> None:
        self.path = path = folder / "libfake_cuda.so"
        shutil.copy(compiled_double(), path)
        self._library = ctypes.CDLL(str(path))
        self._library.fake_live.restype = _Live
        for size in (self._library.fake_pageable, self._library.fake_longest_lock):
            size.restype = ctypes.c_size_t
        self.gpu, self.other = CudaDevice(0, driver=str(path)), CudaDevice(1, driver=str(path))

    @property
    def locked(self) -> int:
        """How many pieces of memory are page-locked."""
        return int(self._library.fake_live().locked)

    @property
    def pageable_bytes(self) -> int:
        """Copied since the last reset from or to host memory that is not page-locked."""
        return int(self._library.fake_pageable())

    def calls(self, name: str) -> int:
        """How often the driver's function was called."""
        return int(self._library.fake_calls(name.encode()))

    def refuse_lock(self) -> None:
        """The next attempt to lock pages fails."""
        self.fail("cuMemHostRegister_v2", NOT_SUPPORTED)

    def fail(self, name: str, code: int, skip: int = 0) -> None:
        """The call after `skip` further ones fails with this error, once; after a sticky one the GPU says no other."""
        self._library.fake_fail(name.encode(), code, skip)

    def late(self) -> None:
        """Streams start nothing before a thread waits for it."""
        self._library.fake_late(True)

    def has(self, attribute: int, value: int) -> None:
        """The first GPU's, as another one has it."""
        self._library.fake_attribute(0, attribute, value)

    def take(self, nbytes: int) -> None:
        """So much of the first GPU's memory is taken by others."""
        self._library.fake_take(0, ctypes.c_size_t(nbytes))

    def reset(self) -> None:
        """All of that as at the start."""
        self._library.fake_reset()
