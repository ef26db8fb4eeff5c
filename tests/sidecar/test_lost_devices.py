"""GPUs that were lost are noted for later processes, and left alone until a probe or a person clears them."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from sidecar.driver_double import DriverDouble
from sidecar.rig import Rig, config

from aegaeon_native import NativeError, cuda_uuid
from aegaeon_sidecar import quarantine
from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.device_probe import check_copies
from aegaeon_sidecar.memory.lost_devices import LostDevices, suspects_in

MINUTE = 60.0
FIRST, SECOND = "a0-first", "a1-second"
ILLEGAL = NativeError("cuMemcpyAsync: an illegal memory access was encountered (CUDA error 700)")
UNKNOWN = NativeError("cuStreamSynchronize: unknown error (CUDA error 999)")


class Node:
    """Its folder of segments and its clock; each process is another LostDevices."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1000.0

    def process(self, *uuids: str) -> LostDevices:
        return LostDevices(self.folder, uuids, lambda: self.now)

    def lose(self, *uuids: str, minutes: float = 0.0, error: BaseException = ILLEGAL) -> None:
        """So long after the last loss, or after the start."""
        self.now += minutes * MINUTE
        self.process(*uuids).note(error)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"losses": 5, "healthy": 0}', '{"losses": [["x", 1]]}'])
def test_a_record_that_no_process_wrote_is_no_record(tmp_path: Path, text: str) -> None:
    node = Node(tmp_path)
    (tmp_path / f"{FIRST}.lost").write_text(text)
    assert node.process(FIRST).suspect() is None
    node.lose(FIRST)
    node.lose(FIRST, minutes=1)
    assert node.process(FIRST).suspect() is not None


def test_a_loss_that_cannot_be_noted_hides_no_error(tmp_path: Path) -> None:
    Node(tmp_path / "gone").lose(FIRST)


def test_two_losses_within_ten_minutes_make_a_gpu_suspect_for_as_long_as_nothing_clears_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.lose(FIRST)
    node.lose(FIRST, minutes=11)
    assert node.process(FIRST).suspect() is None, "eleven minutes lie between them"
    node.lose(FIRST, minutes=9, error=UNKNOWN)
    node.now += 24 * 60 * MINUTE
    suspect = node.process(SECOND, FIRST).suspect()
    assert suspect is not None
    assert (suspect.uuid, suspect.error, suspect.losses) == (FIRST, str(UNKNOWN), 3)
    assert node.process(SECOND).suspect() is None, "of another engine's GPU"
    assert suspects_in(tmp_path) == [suspect]

    node.process(FIRST).pardon()
    node.lose(FIRST, minutes=1)
    assert node.process(FIRST).suspect() is None, "a probe found it healthy between them"
    node.lose(FIRST, minutes=1)
    suspect = node.process(FIRST).suspect()
    assert suspect is not None
    assert suspect.losses == 2, "those of a day ago are forgotten"
    suspect.file.unlink()
    assert node.process(FIRST).suspect() is None
    assert suspects_in(tmp_path) == []


def test_a_process_loses_its_gpus_once_and_by_errors_of_the_device_alone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    process = node.process(FIRST, SECOND)
    for error in (ValueError("a defect"), NativeError("cuMemCreate: out of memory (CUDA error 2)"), ILLEGAL, UNKNOWN):
        process.note(error)
    assert suspects_in(tmp_path) == []
    node.lose(FIRST, SECOND, minutes=1)
    assert [suspect.uuid for suspect in suspects_in(tmp_path)] == [FIRST, SECOND]


def test_the_double_has_uuids_without_a_context_and_passes_the_probe_unless_it_is_lost(
    driver: DriverDouble, folder: Path
) -> None:
    retained = driver.calls("cuDevicePrimaryCtxRetain")
    library = str(driver.path)
    assert cuda_uuid(0, library) == "a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0"
    assert cuda_uuid(1, library) == "a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1"
    with pytest.raises(NativeError, match="CUDA error 101"):
        cuda_uuid(2, library)
    assert driver.calls("cuDevicePrimaryCtxRetain") == retained
    gc.collect()  # the double is the whole session's: slabs of earlier tests may hang in cycles
    free = driver.gpu.free_bytes
    check_copies(driver.gpu)
    assert driver.gpu.free_bytes == free
    for code in (46, 721, 999):
        driver.fail("cuMemcpyAsync", code)
        driver.fail("cuMemcpyBatchAsync_v2", code)
        with pytest.raises(NativeError, match=rf"CUDA error {code}\b"):
            check_copies(driver.gpu)
        with pytest.raises(NativeError, match=rf"CUDA error {code}\b"):
            check_copies(driver.gpu)
        driver.reset()


async def test_an_engine_waits_and_says_why_until_the_record_of_its_gpu_is_removed(
    scheduler: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "_LOOK_S", 0.01)
    settings = SidecarConfig.model_validate(config(scheduler.folder, scheduler=scheduler.target, device="cuda:0"))
    node = Node(settings.segments)
    node.folder.mkdir(exist_ok=True)
    assert not await quarantine.await_healthy(settings, node.process(FIRST))
    node.lose(FIRST)
    node.lose(FIRST, minutes=1)
    waiting = asyncio.create_task(quarantine.await_healthy(settings, node.process(FIRST)))
    await scheduler.until(lambda: bool(scheduler.suspects))
    (suspect,) = scheduler.suspects
    assert (suspect.instance, suspect.uuid, suspect.error, suspect.losses) == ("a", FIRST, str(ILLEGAL), 2)
    assert not waiting.done()
    for file in node.folder.glob("*.lost"):
        file.unlink()
    assert await asyncio.wait_for(waiting, 20)


async def test_a_gpu_is_probed_at_growing_pauses_and_taken_when_it_is_healthy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    healths = [False, False, True]

    async def pause(lost: LostDevices, seconds: float) -> bool:
        pauses.append(seconds)
        return False

    async def probe(settings: SidecarConfig) -> bool:
        return healths.pop(0)

    monkeypatch.setattr(quarantine, "_removed", pause)
    monkeypatch.setattr(quarantine, "_is_healthy", probe)
    settings: Any = SidecarConfig.model_validate(config(folder, device="cuda:0"))
    node = Node(settings.segments)
    node.folder.mkdir(exist_ok=True)
    for _ in range(4):
        node.lose(FIRST, minutes=1)
    process = node.process(FIRST)
    assert await quarantine.await_healthy(settings, process)
    assert (pauses, healths) == ([120, 240, 480], [])
    assert process.suspect() is None
