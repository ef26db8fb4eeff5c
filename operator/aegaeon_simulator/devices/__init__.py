"""Modelled devices: constants from files, and the devices of a pool, which may be of several makes."""

from aegaeon_simulator.devices.device import Charge, Device, Kind, read_device, shipped
from aegaeon_simulator.devices.machines import Machines, More

__all__ = ["Charge", "Device", "Kind", "Machines", "More", "read_device", "shipped"]
