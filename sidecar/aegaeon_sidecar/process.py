"""One engine process: attached to its scheduler until it receives a signal."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from aegaeon_native import NativeError, cpu_level, set_product_helpers
from aegaeon_proto.backends import BACKENDS
from aegaeon_proto.logs import LogLevelError, configure
from aegaeon_sidecar.backends import Backend
from aegaeon_sidecar.backends.kernel_cache import keep_kernels
from aegaeon_sidecar.backends.torch import configure_threads
from aegaeon_sidecar.config import SidecarConfig, read_config
from aegaeon_sidecar.domain.errors import BackendError, SettingsError
from aegaeon_sidecar.domain.sticky import loss_in
from aegaeon_sidecar.drain import drain
from aegaeon_sidecar.engine.engine import Engine
from aegaeon_sidecar.engine.outbox import Outbox
from aegaeon_sidecar.memory.gpu import uuids_of
from aegaeon_sidecar.memory.lost_devices import LostDevices
from aegaeon_sidecar.metrics import EngineMetrics
from aegaeon_sidecar.processors import spare_processors
from aegaeon_sidecar.quarantine import await_healthy
from aegaeon_sidecar.rpc.announcement import announced
from aegaeon_sidecar.rpc.server import Attachment
from aegaeon_sidecar.rpc.sink import Sinks

if TYPE_CHECKING:
    from aegaeon_proto.pages import Pages

log = logging.getLogger("aegaeon_sidecar")
LOG_FORMAT = "%(asctime)s %(levelname).1s %(name)s %(message)s"

_STOP_S = 2.0  # for the current step and chunk
# How long a lane whose wait is over waits for a thread that runs Python: at Python's 5 ms longer than a step takes.
_SWITCH_S = 0.0005
_FLUSH_S = 0.5  # for gateways to acknowledge the last tokens


def main() -> int:
    """Exit status: 0 ended by a signal, 1 a lane died or a device was lost, 2 the configuration is wrong or the memory
    is not to be had."""
    arguments = argparse.ArgumentParser(prog="aegaeon_sidecar", description=__doc__)
    arguments.add_argument("--config", type=Path, required=True, metavar="FILE", help="see docs/design/processes.md")
    arguments.add_argument("--instance", metavar="NAME", help="overrides the file's: it differs from pod to pod")
    arguments.add_argument("--node", metavar="NAME", help="overrides the file's")
    try:
        configure(os.environ, LOG_FORMAT)
        options = vars(arguments.parse_args())
        config = read_config(options.pop("config"), {key: value for key, value in options.items() if value is not None})
        status, ended = _run(config)
    except (SettingsError, BackendError, LogLevelError, NativeError, OSError) as error:
        log.error("%s", error)  # one sentence for people, no traceback
        return 1 if loss_in(error) else 2
    if not ended:
        os._exit(status)  # a step that will not end must not keep the process, and its memory may not be unmapped
    return status


def _run(config: SidecarConfig) -> tuple[int, bool]:
    """The exit status, and whether all threads have ended. A device that is lost meanwhile is noted."""
    log.info("the processor's level is %s", cpu_level())
    lost = LostDevices(config.segments, uuids_of(config.device, config.ranks), time.time)
    if asyncio.run(await_healthy(config, lost)):
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # with the driver as it is by now
    try:
        configure_threads(config.threads)
        if config.device != "cpu":
            keep_kernels(config.segments)
        set_product_helpers(spare_processors(config.engines))
        sys.setswitchinterval(_SWITCH_S)
        backend = _backend(config)
        gc.freeze()  # else each full collection looks at all that was imported, and a step waits for it: 60 ms
        gc.enable()
        return asyncio.run(_serve(config, backend, lost.note))
    except Exception as error:
        lost.note(error)
        raise


def _backend(config: SidecarConfig) -> Backend:
    """Open the backend. Raises BackendError where it cannot compute, or is not installed."""
    kind = BACKENDS[config.backend]
    with announced(config, kind.starting) if kind.starting else nullcontext():
        opened: Backend = import_module(kind.factory).open_backend(
            device=config.device,
            ranks=config.ranks,
            dtype=config.dtype,
            adapters=None if config.adapters is None else config.adapters.limits,
            max_graphs=config.max_graphs,
        )
    return opened


async def _serve(config: SidecarConfig, backend: Backend, note: Callable[[BaseException], None]) -> tuple[int, bool]:
    loop = asyncio.get_running_loop()
    stop, hurry, crashed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    outbox = Outbox(loop)
    engine: Engine

    def replies_to(target: str) -> bool:
        return engine.state.kv.sequences.replies_to(target)

    sinks = Sinks(config.instance, loop, replies_to, tls=config.tls)
    incarnation = uuid.uuid4().hex[:12]

    def crash(error: BaseException) -> None:
        for event in (crashed, stop):
            loop.call_soon_threadsafe(event.set)
        note(error)  # last: a folder that cannot be written must not keep the process; its end waits for this thread

    engine = Engine(config, incarnation, backend, outbox, sinks.push, crash)
    engine.deaths.watch()
    engine.start()
    attachment = Attachment(engine, outbox, config)
    attached = asyncio.create_task(attachment.run(), name="attachment")
    pages = _pages(config.metrics_listen, engine, attachment)
    try:
        if pages:
            await pages.start()
        await _first(attached, stop)
        if not crashed.is_set():
            await drain(engine, attachment, config.drain_s, hurry)
    finally:
        if pages:
            await pages.stop()
    attached.cancel()
    await asyncio.gather(attached, return_exceptions=True)
    ended = await asyncio.to_thread(engine.stop, _STOP_S)
    await sinks.flush(_FLUSH_S)
    await sinks.close()
    return int(crashed.is_set()), ended


def _pages(listen: str | None, engine: Engine, attachment: Attachment) -> Pages | None:
    if listen is None:
        return None
    from aegaeon_proto.pages import Pages  # a server for HTTP: an eighth of what is imported beside torch

    registry = CollectorRegistry()
    registry.register(EngineMetrics(engine))

    async def render() -> bytes:
        return await asyncio.to_thread(generate_latest, registry)  # the engine's lock is not waited for in the loop

    return Pages(listen, lambda: attachment.ready, "not attached, or draining", render)


async def _first(attached: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Wait for a signal; raises the error that breaks the attachment for good."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((attached, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if attached.done():
        attached.result()
