"""A few questions to NVIDIA's driver, asked through ctypes: what a device can do, before anything is built on it."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer
from pathlib import Path

ATTRIBUTES = {  # CUdevice_attribute of cuda.h, by number
    16: "multiprocessors",
    36: "memory clock, kHz",
    37: "memory bus, bits",
    38: "L2, bytes",
    40: "copy engines",
    75: "compute capability, major",
    76: "compute capability, minor",
    78: "stream priorities",
    88: "pageable memory access",
    91: "host pointers of registered memory usable",
    97: "shared memory of a block, opt-in bytes",
    99: "host memory can be registered",
    102: "virtual memory management",
    110: "GPUDirect RDMA with mapped memory",
    113: "read-only host memory can be registered",
    115: "memory pools",
    128: "fabric handles",
}
_REGISTER_PORTABLE, _REGISTER_MAP, _REGISTER_READ_ONLY = 1, 2, 8
_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3
_DEVICE_POINTER = 3  # of CUpointer_attribute


class DriverError(Exception):
    """A call that the driver refused; the text has its name and the driver's number."""


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Flags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _AllocationProp(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", _Flags),
    )


class Driver:
    """One device of a driver, its primary context current in the thread that opens it.

    Raises DriverError, or OSError where the library is not there.
    """

    def __init__(self, library: str, ordinal: int) -> None:
        self._library = ctypes.CDLL(library)
        self.call("cuInit", c_uint(0))
        self._device = c_int()
        self.call("cuDeviceGet", byref(self._device), c_int(ordinal))
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self._device)
        self.call("cuCtxPushCurrent_v2", context)

    @property
    def name(self) -> str:
        name = create_string_buffer(128)
        self.call("cuDeviceGetName", name, c_int(len(name)), self._device)
        return name.value.decode()

    @property
    def version(self) -> int:
        """1000 x major + 10 x minor."""
        return self._number("cuDriverGetVersion", c_int())

    @property
    def total_bytes(self) -> int:
        return self._number("cuDeviceTotalMem_v2", c_size_t(), self._device)

    def attribute(self, number: int) -> int:
        """A CUdevice_attribute. Raises DriverError for one that the driver does not know."""
        return self._number("cuDeviceGetAttribute", c_int(), c_int(number), self._device)

    def granularity(self, recommended: bool) -> int:
        """Bytes that physical memory is allocated in."""
        prop = _AllocationProp(type=_PINNED, location=_Location(_DEVICE, self._device.value))
        return self._number("cuMemGetAllocationGranularity", c_size_t(), byref(prop), c_int(int(recommended)))

    def address_space(self, slabs: int, slab_bytes: int) -> AddressSpace:
        """So many addresses without memory, and memory for half of them."""
        prop = _AllocationProp(type=_PINNED, location=_Location(_DEVICE, self._device.value))
        access = _Access(_Location(_DEVICE, self._device.value), _READ_WRITE)
        return AddressSpace(self, slabs, slab_bytes, prop, access)

    def lock_s(self, folder: Path, nbytes: int, writable: bool, written: bool = False) -> float:
        """Seconds to page-lock a shared mapping of a new file there. Raises DriverError when that is refused.

        `written`: with memory behind all of it, as images have.
        """
        flags = _REGISTER_PORTABLE | _REGISTER_MAP | (0 if writable else _REGISTER_READ_ONLY)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(nbytes)
            if written:
                os.posix_fallocate(file.fileno(), 0, nbytes)
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            with _Mapping(file.fileno(), nbytes, access) as address:
                begin = time.perf_counter()
                self.call("cuMemHostRegister_v2", c_void_p(address), c_size_t(nbytes), c_uint(flags))
                seconds = time.perf_counter() - begin
                self.call("cuMemHostUnregister", c_void_p(address))
        return seconds

    def _number(self, name: str, value: c_int | c_size_t, *arguments: object) -> int:
        self.call(name, byref(value), *arguments)
        return value.value

    def call(self, name: str, *arguments: object) -> None:
        """A function of the driver. Raises DriverError with its name and the driver's number."""
        code = getattr(self._library, name)(*arguments)
        if code:
            text = c_char_p()
            if hasattr(self._library, "cuGetErrorName"):
                self._library.cuGetErrorName(c_int(code), byref(text))
            raise DriverError(f"{name}: {text.value.decode() if text.value else 'error'} ({code})")


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", c_int))


class AddressSpace:
    """A reserved range of device addresses, as a KV range is one: its slabs are mapped and unmapped one by one."""

    def __init__(self, driver: Driver, slabs: int, slab_bytes: int, prop: _AllocationProp, access: _Access) -> None:
        self._driver, self._access = driver, access
        self.slabs, self.slab_bytes = slabs, slab_bytes
        self._base = c_uint64()
        size = c_size_t(slabs * slab_bytes)
        driver.call("cuMemAddressReserve", byref(self._base), size, c_size_t(0), c_uint64(0), c_uint64(0))
        self._handles = [c_uint64() for _ in range(slabs // 2)]
        for handle in self._handles:
            driver.call("cuMemCreate", byref(handle), c_size_t(slab_bytes), byref(prop), c_uint64(0))

    def map(self, slab: int) -> None:
        memory = self._handles[slab % len(self._handles)]
        self._driver.call("cuMemMap", self._at(slab), c_size_t(self.slab_bytes), c_size_t(0), memory, c_uint64(0))

    def allow(self, slab: int) -> None:
        """This device may read and write it."""
        size = c_size_t(self.slab_bytes)
        self._driver.call("cuMemSetAccess", self._at(slab), size, byref(self._access), c_size_t(1))

    def unmap(self, slab: int) -> None:
        self._driver.call("cuMemUnmap", self._at(slab), c_size_t(self.slab_bytes))

    def is_accessible(self, slab: int) -> bool:
        """What Triton's launcher asks of every pointer before it launches: CU_POINTER_ATTRIBUTE_DEVICE_POINTER."""
        try:
            self._driver.call("cuPointerGetAttribute", byref(c_uint64()), c_int(_DEVICE_POINTER), self._at(slab))
        except DriverError:
            return False
        return True

    def close(self) -> None:
        """All slabs are unmapped by now."""
        for handle in self._handles:
            self._driver.call("cuMemRelease", handle)
        self._driver.call("cuMemAddressFree", self._base, c_size_t(self.slabs * self.slab_bytes))

    def _at(self, slab: int) -> c_uint64:
        return c_uint64(self._base.value + slab * self.slab_bytes)


class _Mapping:
    """mmap(2) itself: Python's gives no address of memory that is read-only."""

    def __init__(self, descriptor: int, nbytes: int, access: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = c_void_p
        self._arguments = (
            None,
            c_size_t(nbytes),
            c_int(access),
            c_int(mmap.MAP_SHARED),
            c_int(descriptor),
            c_size_t(0),
        )
        self._nbytes = nbytes

    def __enter__(self) -> int:
        self._address = self._libc.mmap(*self._arguments)
        if self._address in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap failed")
        return int(self._address)

    def __exit__(self, *error: object) -> None:
        self._libc.munmap(c_void_p(self._address), c_size_t(self._nbytes))
