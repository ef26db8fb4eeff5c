"""Keeps an engine beside its GPUs on machines with several NUMA nodes, which have processors, memory and GPUs each.

All copies of a node's GPUs from and to memory of another one share the link between the nodes. A page of memory is
taken from the node of the processor that touches it first. So it suffices where the threads run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from aegaeon_sidecar.memory.gpu import Gpus

log = logging.getLogger(__name__)

_SYS = Path("/sys")


def run_near(gpus: Gpus, system: Path = _SYS) -> None:
    """Run this thread, and those that it starts, on processors of the nodes of these GPUs.

    Changes nothing where the kernel does not say which those are, or allows this process none of them.
    """
    near = processors_near((gpu.pci_bus_id for gpu in gpus if gpu is not None), system)
    allowed = os.sched_getaffinity(0) & near
    if allowed:
        os.sched_setaffinity(0, allowed)
    elif near:
        log.warning("this process may run on no processor near its GPU: copies cross the link between NUMA nodes")


def processors_near(bus_ids: Iterable[str], system: Path = _SYS) -> set[int]:
    """The processors of these devices' nodes; none where a node is not known."""
    processors: set[int] = set()
    for bus_id in bus_ids:
        try:
            node = int((system / "bus/pci/devices" / bus_id.lower() / "numa_node").read_text())
            if node < 0:  # there is one node
                return set()
            processors |= _listed((system / f"devices/system/node/node{node}/cpulist").read_text())
        except (OSError, ValueError):
            return set()
    return processors


def _listed(text: str) -> set[int]:
    """The kernel's lists: "0-3,8". Raises ValueError."""
    ranges = (part.partition("-") for part in text.strip().split(",") if part)
    return {number for first, _, last in ranges for number in range(int(first), int(last or first) + 1)}
