"""First guesses of a model's latency constants: from its size and the data sheet of the GPU, until reports refine them.

A decode step reads weights and KV once, a prompt computes two operations per parameter and token.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from aegaeon_scheduler.core.config import LatencyConstants
from aegaeon_scheduler.core.domain import Footprint


class Sheet(NamedTuple):
    """Bytes per second of the GPU's memory and of its link to the host; dense 16-bit operations per second."""

    memory: float
    link: float
    compute: float


_PCIE_4, _PCIE_5 = 24e9, 50e9  # x16, as copies of pinned memory reach
# By words of the name that the driver gives: the first row whose words are all in it.
_SHEETS: tuple[tuple[tuple[str, ...], Sheet], ...] = (
    (("B200",), Sheet(8.0e12, _PCIE_5, 2250e12)),
    (("H200",), Sheet(4.8e12, _PCIE_5, 989e12)),
    (("H20",), Sheet(4.0e12, _PCIE_5, 148e12)),
    (("H100", "PCIe"), Sheet(2.0e12, _PCIE_5, 756e12)),
    (("H100", "NVL"), Sheet(3.9e12, _PCIE_5, 835e12)),
    (("H100",), Sheet(3.35e12, _PCIE_5, 989e12)),
    (("H800", "PCIe"), Sheet(2.0e12, _PCIE_5, 756e12)),
    (("H800",), Sheet(3.35e12, _PCIE_5, 989e12)),
    (("A100", "40GB"), Sheet(1.555e12, _PCIE_4, 312e12)),
    (("A100",), Sheet(2.0e12, _PCIE_4, 312e12)),
    (("A800",), Sheet(2.0e12, _PCIE_4, 312e12)),
    (("L40S",), Sheet(0.864e12, _PCIE_4, 362e12)),
    (("L40",), Sheet(0.864e12, _PCIE_4, 181e12)),
    (("L4",), Sheet(0.3e12, _PCIE_4, 121e12)),
    (("A10",), Sheet(0.6e12, _PCIE_4, 125e12)),
    (("RTX", "4090"), Sheet(1.008e12, _PCIE_4, 165e12)),
)
_READS, _COMPUTES = 0.7, 0.65  # of what the sheet says, in practice
_STEP_S = 1e-3  # of a step beside reading: launches, sampling
_PARAMETER_BYTES = 2
_REFERENCE_OPS = 989e12  # at which the default quadratic term of a prompt was measured


def sheet_of(device: str) -> Sheet | None:
    """The sheet of a device as a sidecar names it, "x N" for a group of N; None for an unknown GPU, or a part of
    one."""
    words = set(re.split(r"[ ,-]+", device))
    if "MIG" in words:
        return None
    sheet = next((sheet for names, sheet in _SHEETS if words.issuperset(names)), None)
    group = re.search(r" x ([0-9]+)$", device)
    if sheet is None or group is None:
        return sheet
    count = int(group[1])
    return Sheet(sheet.memory * count, sheet.link * count, sheet.compute * count)


def guess(footprint: Footprint, device: str) -> LatencyConstants | None:
    """Constants of a model on a device that is known."""
    sheet = sheet_of(device)
    if sheet is None:
        return None
    reads = sheet.memory * _READS
    weights_s = footprint.weight_bytes / reads
    usual = LatencyConstants()
    return replace(
        usual,
        a=weights_s + _STEP_S,
        b=footprint.kv_block_bytes / footprint.kv_block_tokens / reads,
        p0=weights_s,
        p1=2.0 * footprint.weight_bytes / _PARAMETER_BYTES / (sheet.compute * _COMPUTES),
        p2=usual.p2 * _REFERENCE_OPS / sheet.compute,
        floor=weights_s + _STEP_S,
        load_bytes_per_s=sheet.link,
        kv_bytes_per_s=sheet.link,
    )
