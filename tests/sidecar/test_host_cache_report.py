"""What the host cache holds, reported by heartbeats while schedulers come and go."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import cast

from sidecar.rig import Rig, config, inside, ready

from aegaeon_proto.engine.catalog import DirectorySource, ModelSpec
from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.models.weight_files import WeightFiles
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.host_cache_report import HostCacheReport
from aegaeon_sidecar.weights.image_folder import ImageFolder
from aegaeon_sidecar.weights.models import Model
from aegaeon_sidecar.weights.table import ModelTable

PATIENCE_S = 20.0


class Files:
    """Of a model whose files are named by this identity."""

    identity = "files"


def held_of(folder: Path) -> tuple[HostCacheReport, HostCache, Monitor]:
    """Of a catalog with one model, whose image is in the host cache."""
    cache, monitor = HostCache(folder, 1 << 20), Monitor()
    cache.obtain("files", 4096, lambda file: str(os.pwrite(file, bytes(4096), 0))).close()
    model = Model(ModelSpec("m", DirectorySource("")), files=cast(WeightFiles, Files()))
    return HostCacheReport(ModelTable(monitor, {"m": model}), cache), cache, monitor


def test_a_heartbeat_that_waits_for_the_engines_lock_keeps_no_new_attachment_from_it(folder: Path) -> None:
    """`hello` forgets with the engine's lock held: a heartbeat that waits for that with its own would end both."""
    held, _, monitor = held_of(folder)
    heartbeat = threading.Thread(target=held.news, daemon=True)

    def attach() -> None:
        with monitor.changed:
            heartbeat.start()
            heartbeat.join(0.2)  # until it waits for this lock
            held.forget()

    attachment = threading.Thread(target=attach, daemon=True)
    attachment.start()
    for thread in (attachment, heartbeat):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_heartbeat_waits_for_the_caches_folder_without_keeping_a_new_attachment(folder: Path) -> None:
    """Another sidecar may have the folder locked; and what the former scheduler would receive, the new one does."""
    held, cache, _ = held_of(folder)
    received: list[list[str] | None] = []
    heartbeat = threading.Thread(target=lambda: received.append(held.news()), daemon=True)
    with cache._folder.locked():
        heartbeat.start()
        heartbeat.join(0.2)  # until it waits for this lock
        attachment = threading.Thread(target=held.forget, daemon=True)
        attachment.start()
        attachment.join(PATIENCE_S)
        assert not attachment.is_alive()
    heartbeat.join(PATIENCE_S)
    assert received == [None]
    assert held.news() == ["m"]
    assert held.news() is None


async def test_a_sidecar_is_heard_while_another_one_has_the_caches_folder_locked(scheduler: Rig) -> None:
    """As one has that evicts a large image: for longer than a silent engine counts as alive."""
    async with inside(config(scheduler.folder)):
        link = await ready(scheduler, scheduler.models["llama"])
        await link.until(lambda: link.held[-1:] == [{"m"}])
        with ImageFolder(scheduler.folder / "segments", 0).locked():
            (scheduler.folder / "segments" / "changed").touch()
            before = link.heartbeats
            async with asyncio.timeout(PATIENCE_S):
                await link.until(lambda: link.heartbeats >= before + 5)
