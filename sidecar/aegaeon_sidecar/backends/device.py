"""Checks whether a backend can compute on its device, before anything is built."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch

from aegaeon_sidecar.domain.errors import BackendError, DeviceLostError
from aegaeon_sidecar.domain.ranks import devices_of
from aegaeon_sidecar.domain.sticky import end_if_sticky


def open_device(name: str) -> torch.device:
    """ "cpu" or "cuda:N". Raises BackendError when torch cannot compute there."""
    if name == "cpu":
        return torch.device(name)
    if re.fullmatch(r"cuda:[0-9]+", name) is None:
        raise BackendError(f"device is {name!r}; allowed: cpu, cuda:N")
    device = torch.device(name)
    if torch.version.cuda is None:
        raise BackendError(f"device is {name}, but this torch is built without CUDA; install one with it, or use cpu")
    if not torch.cuda.is_available():
        raise BackendError(f"device is {name}, but torch finds no CUDA device; see nvidia-smi, or use device cpu")
    if device.index >= torch.cuda.device_count():
        raise BackendError(f"device is {name}, but this machine has {torch.cuda.device_count()}; see nvidia-smi")
    return device


def open_devices(name: str, ranks: int) -> tuple[torch.device, ...]:
    """The devices of so many ranks, `name` being the first one's. Raises BackendError."""
    return tuple(open_device(each) for each in devices_of(name, ranks))


def memory_infos(name: str, ranks: int) -> tuple[Callable[[], tuple[int, int]], ...]:
    """Functions that return the free and total bytes of each rank's GPU; none for a CPU. Raises BackendError."""
    return tuple(
        partial(torch.cuda.mem_get_info, device) for device in open_devices(name, ranks) if device.type == "cuda"
    )


def enter(name: str) -> None:
    """Make "cuda:N" the calling thread's device, else cuda:0, for whatever asks for none: streams, events, kernels, and
    libraries of others. A thread begins with it; "cpu" changes nothing."""
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)


def on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, whatever its arguments are on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def recorded(device: torch.device) -> torch.cuda.Event | None:
    """An event behind all that is launched so far; None on a CPU, where nothing is pending."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


@contextmanager
def drained_on_error(devices: tuple[torch.device, ...]) -> Iterator[None]:
    """Drain the device after a failure inside: memory that its kernels read may then be reused.

    Raises DeviceLostError where the failure is sticky, or the device does not even say that it is done.
    """
    try:
        yield
    except BaseException as error:
        end_if_sticky(error)
        for device in devices:
            drain(device)
        raise


def drain(device: torch.device) -> None:
    """Wait for all that this thread launched there; on a CPU nothing is pending. Raises DeviceLostError."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.current_stream(device).synchronize()
    except RuntimeError as error:
        raise DeviceLostError(f"{device} is lost: {error}") from error
