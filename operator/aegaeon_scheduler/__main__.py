"""`python -m aegaeon_scheduler --config FILE`: reads the configuration, serves until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from aegaeon_scheduler.config import SchedulerConfig, core_config, load_config
from aegaeon_scheduler.core.errors import CoreError
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_scheduler.errors import SchedulerError
from aegaeon_scheduler.service.recording import recording
from aegaeon_scheduler.service.server import Service

_log = logging.getLogger("aegaeon_scheduler")


def main() -> int:
    """The exit status: 0 after a signal, 1 when the core failed, 2 when the start did."""
    parser = argparse.ArgumentParser(prog="python -m aegaeon_scheduler", description="Aegaeon's scheduler.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="configuration, JSON")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return asyncio.run(_serve(load_config(parser.parse_args().config)))
    except (SchedulerError, CoreError) as error:
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
        await service.start()
        _log.info("serving %d models on %s", len(config.models), config.listen)
        waits = [asyncio.create_task(event.wait()) for event in (stop, service.crashed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await service.stop()
    return 1 if service.crashed.is_set() else 0


def _microseconds() -> int:
    """Since 1970: streams of a sidecar that begin a second apart share no command id below a million a second."""
    return time.time_ns() // 1000


if __name__ == "__main__":
    sys.exit(main())
