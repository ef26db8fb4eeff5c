"""The devices of a pool: those of the split, and additional ones of other makes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from aegaeon_simulator.devices.device import Device, Kind
from aegaeon_simulator.errors import DeviceError


@dataclass(frozen=True, slots=True)
class More:
    """`count` devices of one make, which prefill and decode."""

    count: int
    device: Device


@dataclass(frozen=True)
class Machines:
    """All devices of a pool. A kind of model has one size, wherever it runs."""

    first: Device
    more: tuple[More, ...] = ()

    @staticmethod
    def of(first: Device, more: Iterable[More]) -> Machines:
        """Build the pool's devices with the first one's memory layout. Raises DeviceError for files that contradict
        each other."""
        machines = Machines(first, tuple(replace(m, device=_cut_as(first, m.device)) for m in more))
        seen: dict[str, Device] = {}
        for device in machines.devices:
            if seen.setdefault(device.name, device) != device:
                raise DeviceError(f"two files have a device named {device.name}; rename one of them")
            machines._check_sizes(device)
        return machines

    def _check_sizes(self, device: Device) -> None:
        for name, kind in device.kinds.items():
            known = self.kinds[name]
            sizes = (known.weight_bytes, known.kv_bytes_per_token)
            if (kind.weight_bytes, kind.kv_bytes_per_token) != sizes:
                raise DeviceError(
                    f"{name} has other sizes on {device.name} than on a device before it; make the files agree, "
                    f"or give one of the kinds another name"
                )

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """One device of each make."""
        return (self.first, *(m.device for m in self.more))

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """Every kind with constants of some device, from the first device that has them."""
        kinds: dict[str, Kind] = {}
        for device in self.devices:
            kinds |= {name: kind for name, kind in device.kinds.items() if name not in kinds}
        return kinds

    def kind(self, name: str) -> Kind:
        """The kind of this name, where it fits some device. Raises DeviceError."""
        if not self.more:
            return self.first.kind(name)
        able = [device for device in self.devices if name in device.kinds]
        fitting = [device for device in able if device.kinds[name].weight_bytes <= device.model_bytes]
        if fitting:
            return self.kinds[name]
        if able:
            return max(able, key=lambda device: device.model_bytes).kind(name)  # its error reports the size
        known, makes = ", ".join(sorted(self.kinds)), ", ".join(device.name for device in self.devices)
        raise DeviceError(f"none of {makes} has constants of {name}, but of {known}; add a device that has with --also")


def _cut_as(first: Device, device: Device) -> Device:
    return replace(device, slab_bytes=first.slab_bytes, block_tokens=first.block_tokens)
