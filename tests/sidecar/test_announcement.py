"""An engine that imports for long says so to the scheduler that leads, before it can attach."""

from __future__ import annotations

import threading
from pathlib import Path

from sidecar.rig import Rig, config

from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.rpc.announcement import announced


async def test_the_scheduler_hears_what_an_engine_does_whichever_target_leads(scheduler: Rig) -> None:
    settings = config(scheduler.folder, scheduler=f"unix:{scheduler.folder}/none.sock", standbys=[scheduler.target])
    with announced(SidecarConfig.model_validate(settings), "importing vLLM"):
        await scheduler.until(lambda: scheduler.announcements == [("a", "importing vLLM")])
    [thread] = [thread for thread in threading.enumerate() if thread.name == "announcement"]
    thread.join(5)
    assert not thread.is_alive()


async def test_nothing_fails_where_no_scheduler_is(folder: Path) -> None:
    with announced(SidecarConfig.model_validate(config(folder)), "importing vLLM"):
        pass
