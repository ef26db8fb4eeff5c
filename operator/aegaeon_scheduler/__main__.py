"""`python -m aegaeon_scheduler --config FILE`: reads the configuration, serves until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from pathlib import Path

from aegaeon_kube.errors import KubeError
from aegaeon_proto.logs import LogLevelError, configure
from aegaeon_scheduler import COMPILED
from aegaeon_scheduler.config import SchedulerConfig, core_config, load_config
from aegaeon_scheduler.core.errors import CoreError
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_scheduler.errors import SchedulerError
from aegaeon_scheduler.interpreter import prefer_the_loop, relax
from aegaeon_scheduler.service.recording import recording
from aegaeon_scheduler.service.server import Service

_log = logging.getLogger("aegaeon_scheduler")


def main() -> int:
    """The exit status: 0 after a signal, 1 when the core failed or another process leads, 2 when the start failed."""
    parser = argparse.ArgumentParser(prog="python -m aegaeon_scheduler", description="Aegaeon's scheduler.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration, JSON")
    parser.add_argument(
        "--holder", metavar="NAME", help="name in the Lease; overrides the file's, as it differs from pod to pod"
    )
    options = parser.parse_args()
    relax()
    prefer_the_loop()
    try:
        configure(os.environ)
        _log.info("the core is %s", "compiled" if COMPILED else "interpreted: three times the processor time")
        return asyncio.run(_serve(load_config(options.config, options.holder)))
    except (SchedulerError, CoreError, KubeError, LogLevelError) as error:
        sys.stderr.write(f"aegaeon_scheduler: {error}\n")
        return 2


async def _serve(config: SchedulerConfig) -> int:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    settings = core_config(config)
    with ExitStack() as stack:
        observers = [stack.enter_context(recording(config.record, settings))] if config.record else []
        service = Service(config, Scheduler(settings), time.monotonic, _microseconds, observers)
        if config.lease is not None:
            service.leadership.stand_by()
        await service.start()
        silent = asyncio.Event()
        lease = asyncio.create_task(_lead(config, service, silent))
        ends = [asyncio.create_task(event.wait()) for event in (stop, service.crashed)]
        await asyncio.wait([lease, *ends], return_when=asyncio.FIRST_COMPLETED)
        await service.stop()
        for task in ends:
            task.cancel()
        silent.set()
        replaced = await lease
    return 1 if service.crashed.is_set() or replaced else 0


async def _lead(config: SchedulerConfig, service: Service, silent: asyncio.Event) -> bool:
    """Lead, at once or when the Lease is free, until this process is silent; True when another one leads before. Raises
    KubeError where there is no cluster."""
    if config.lease is None:
        _log.info("serving %d models on %s", len(config.models), config.listen)
        await silent.wait()
        return False
    from aegaeon_kube.lease import Leadership, LeaseSettings  # with a client for HTTP, a third of a scheduler's start
    from aegaeon_kube.server import connect

    async with connect() as api:
        leadership = Leadership(api, LeaseSettings(**config.lease.model_dump()))
        if not await _before(silent, leadership.acquire()):
            return False
        service.leadership.lead(lambda: leadership.term)
        _log.info("serving %d models on %s", len(config.models), config.listen)
        replaced = await _before(silent, leadership.replaced())
        if not replaced:
            await leadership.release()
        return replaced


async def _before(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """True when `work` ended before `stop`, which cancels it."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    for task in (working, stopping):
        task.cancel()
    await asyncio.gather(working, stopping, return_exceptions=True)
    if working.cancelled():
        return False
    working.result()
    return True


def _microseconds() -> int:
    """Since 1970: streams of a sidecar that begin a second apart share no command id below a million a second."""
    return time.time_ns() // 1000


if __name__ == "__main__":
    sys.exit(main())
