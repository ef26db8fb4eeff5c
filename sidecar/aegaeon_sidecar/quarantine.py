"""Keeps an engine from a GPU that was lost repeatedly, until a probe finds it healthy or its record is removed.

The engine does not attach meanwhile, so the scheduler gives it nothing; it tells the scheduler why.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.memory.lost_devices import LostDevices, Suspect
from aegaeon_sidecar.rpc.announcement import announced

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 60.0  # before the first probe of a GPU that was lost twice; twice as long for each two losses more
_LONGEST_PAUSE_S = 900.0
PROBE = "aegaeon_sidecar.device_probe"
_PROBE_S = 90.0  # a GPU that hangs answers no sooner; torch may take half of it to be imported
_LOOK_S = 1.0  # whether the record was removed


async def await_healthy(config: SidecarConfig, lost: LostDevices) -> bool:
    """Returns when the engine may take its devices: at once as long as none of them is suspect. Whether one was."""
    waited = False
    while (suspect := lost.suspect()) is not None:
        text = "%s; this engine does not take it before a probe finds it healthy, or %s is removed"
        log.error(text, suspect, suspect.file)
        with announced(config, "its device was lost again and again, and is probed", suspect):
            async with _unready(config, suspect):
                await _probe_until_healthy(config, lost, suspect)
        waited = True
    return waited


async def _probe_until_healthy(config: SidecarConfig, lost: LostDevices, suspect: Suspect) -> None:
    pause_s = min(FIRST_PAUSE_S * 2 ** max(suspect.losses // 2 - 1, 0), _LONGEST_PAUSE_S)
    while not await _removed(lost, pause_s):
        if await _is_healthy(config):
            log.info("GPU %s is healthy", suspect.uuid)
            lost.pardon()
            return
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        log.warning("GPU %s is not healthy; it is probed again in %g s", suspect.uuid, pause_s)


async def _removed(lost: LostDevices, pause_s: float) -> bool:
    """True when a person removes the record within the pause."""
    try:
        async with asyncio.timeout(pause_s):
            while lost.suspect() is not None:  # noqa: ASYNC110  # a file is watched
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        return False
    return True


async def _is_healthy(config: SidecarConfig) -> bool:
    """Probe the GPU in a separate process: a sticky error only ends that process's context."""
    arguments = ("-m", PROBE, "--device", config.device, "--ranks", str(config.ranks))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    try:
        async with asyncio.timeout(_PROBE_S):
            return await process.wait() == 0
    except TimeoutError:
        process.kill()  # it may be held by the driver, and is not waited for
        return False


@asynccontextmanager
async def _unready(config: SidecarConfig, suspect: Suspect) -> AsyncIterator[None]:
    """The pod lives, and is not ready: a kubelet that found nothing here would start it again and again."""
    if config.metrics_listen is None:
        yield
        return
    from aegaeon_proto.pages import Pages  # as in process.py

    async def nothing() -> bytes:
        return b""

    pages = Pages(config.metrics_listen, lambda: False, str(suspect), nothing)
    await pages.start()
    try:
        yield
    finally:
        await pages.stop()
