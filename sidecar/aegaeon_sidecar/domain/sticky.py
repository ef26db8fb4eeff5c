"""Errors after which a CUDA context does nothing more: every later step and copy of the process would fail as well.

CUDA calls them sticky. They come as the driver's number from our own calls, as torch's AcceleratorError with the same
number, and as text alone from libraries that launch kernels themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from aegaeon_sidecar.domain.errors import DeviceLostError

# Of cuda.h and driver_types.h, which have one number for each of these, and what cudaGetErrorString says.
STICKY = {
    46: "CUDA-capable device(s) is/are busy or unavailable",
    214: "uncorrectable ECC error encountered",
    220: "uncorrectable NVLink error detected during the execution",
    226: "Invalid access of peer GPU memory over nvlink or a hardware error",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    709: "context is destroyed",
    710: "device-side assert triggered",
    714: "hardware stack error",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    721: "tensor memory not completely freed",
    999: "unknown error",
}
_LOST = "the device is lost: "
_NUMBER = re.compile(r"\(CUDA error (\d+)\)")


def end_if_sticky(error: BaseException) -> None:
    """Raises DeviceLostError when the error, or one that it was raised from, is sticky."""
    for cause in _causes(error):
        if _is_sticky(cause):
            raise DeviceLostError(f"{_LOST}{' '.join(str(cause).split()):.300}") from error


def loss_in(error: BaseException) -> str:
    """Returns the error text of a lost device, if this error or one of its causes is of one; else nothing."""
    for each in _causes(error):
        if isinstance(each, DeviceLostError) or _is_sticky(each):
            return f"{' '.join(str(each).split()):.300}".removeprefix(_LOST)
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _is_sticky(error: BaseException) -> bool:
    text = str(error)
    number = _NUMBER.search(text)
    if number is not None:
        return int(number[1]) in STICKY
    if getattr(error, "error_code", None) in STICKY:
        return True
    return "CUDA" in text and any(name in text for name in STICKY.values())
