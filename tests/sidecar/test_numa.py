"""An engine's threads run on the NUMA nodes of its GPUs, where the kernel says which these are."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sidecar.driver_double import DriverDouble

from aegaeon_sidecar.memory.numa import processors_near, run_near

FIRST, OTHER = "0000:0a:00.0", "0000:8a:00.0"  # the double's


def system(folder: Path, nodes: dict[str, int], processors: dict[int, str]) -> Path:
    for bus_id, node in nodes.items():
        device = folder / "bus/pci/devices" / bus_id
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
    for node, some in processors.items():
        place = folder / f"devices/system/node/node{node}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(f"{some}\n")
    return folder


def test_the_processors_of_all_nodes_of_the_gpus_count(tmp_path: Path) -> None:
    made = system(tmp_path, {FIRST: 0, OTHER: 1}, {0: "0-3,16-17", 1: "4,8"})
    assert processors_near([FIRST.upper()], made) == {0, 1, 2, 3, 16, 17}
    assert processors_near([FIRST, OTHER], made) == {0, 1, 2, 3, 16, 17, 4, 8}
    assert processors_near([], made) == set()


@pytest.mark.parametrize(
    ("nodes", "processors"),
    [({FIRST: -1}, {0: "0-3"}), ({}, {0: "0-3"}), ({FIRST: 2}, {0: "0-3"}), ({FIRST: 0}, {0: "x"})],
)
def test_nothing_is_known_of_one_node_or_without_the_kernels_word(
    tmp_path: Path, nodes: dict[str, int], processors: dict[int, str]
) -> None:
    assert processors_near([FIRST], system(tmp_path, nodes, processors)) == set()


def in_a_thread(call: Callable[[], None]) -> set[int]:
    """Where a thread may run that the call was made in; this one's affinity stays."""
    seen: list[set[int]] = []

    def run() -> None:
        call()
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return seen[0]


def test_threads_run_near_the_gpu_within_what_the_process_may_use(tmp_path: Path, driver: DriverDouble) -> None:
    allowed = os.sched_getaffinity(0)
    near, far = min(allowed), max(allowed) + 1
    assert driver.gpu.pci_bus_id == FIRST
    made = system(tmp_path, {FIRST: 0, OTHER: 1}, {0: f"{near},{far}", 1: str(far)})
    assert in_a_thread(lambda: run_near((driver.gpu,), made)) == {near}
    assert in_a_thread(lambda: run_near((driver.other,), made)) == allowed
    assert in_a_thread(lambda: run_near((None,), made)) == allowed
