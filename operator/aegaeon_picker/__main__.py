"""`python -m aegaeon_picker`: serves until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from functools import partial
from typing import Any

import click
import uvloop
from prometheus_client import start_http_server

from aegaeon_kube.errors import KubeError
from aegaeon_kube.server import connect
from aegaeon_picker.errors import PickerError
from aegaeon_picker.fleet import Endpoint, Fleet
from aegaeon_picker.metrics import Metrics
from aegaeon_picker.server import Picker, Served, serve
from aegaeon_picker.tls import server_context
from aegaeon_picker.transport.limits import Limits
from aegaeon_picker.watch import follow
from aegaeon_proto.logs import LogLevelError, configure

log = logging.getLogger("aegaeon_picker")
_LIMITS = Limits()
_COUNT = click.IntRange(1, 1 << 20)


@click.command(context_settings={"auto_envvar_prefix": "AEGAEON_PICKER"})
@click.option("--pool", help="InferencePool whose pods are the endpoints.")
@click.option("--namespace", default="default", show_default=True, help="Namespace of the InferencePool.")
@click.option("--endpoints", help="Fixed endpoints `ip:port,ip:port` in place of a pool.")
@click.option("--listen", default="0.0.0.0:9002", show_default=True, help="Address for Envoy's streams.")
@click.option(
    "--health-listen", default="0.0.0.0:9003", show_default=True, help="Address of health checks, without TLS."
)
@click.option("--metrics-port", default=9090, show_default=True, help="Port of Prometheus metrics; 0: none.")
@click.option(
    "--tls", default="selfSigned", show_default=True, help="`selfSigned`, `off`, or a folder of tls.crt and tls.key."
)
@click.option("--grace", default=130.0, show_default=True, help="Seconds for open streams to end at shutdown.")
@click.option(
    "--max-connections", default=_LIMITS.connections, show_default=True, type=_COUNT, help="Maximum connections."
)
@click.option(
    "--max-connections-per-address",
    default=_LIMITS.connections_per_address,
    show_default=True,
    type=_COUNT,
    help="Maximum connections from one address; an Envoy has one or more for each worker thread.",
)
@click.option("--max-streams", default=_LIMITS.streams, show_default=True, type=_COUNT, help="Maximum open requests.")
@click.option(
    "--max-streams-per-connection",
    default=_LIMITS.streams_per_connection,
    show_default=True,
    type=_COUNT,
    help="Maximum open requests on one connection; above it an Envoy opens another connection.",
)
@click.option(
    "--max-buffered-mib",
    default=_LIMITS.buffered_bytes >> 20,
    show_default=True,
    type=_COUNT,
    help="Maximum MiB of incomplete messages and unread responses.",
)
@click.option("--conformance", is_flag=True, help="Obey the headers of GIE's conformance suite. Never in production.")
def main(**options: Any) -> None:
    """Pick the gateway pod for each request of a stock inference gateway.

    Each option may also be set in the environment, for example AEGAEON_PICKER_MAX_STREAMS for --max-streams.
    """
    limits = Limits(
        connections=options.pop("max_connections"),
        connections_per_address=options.pop("max_connections_per_address"),
        streams=options.pop("max_streams"),
        streams_per_connection=options.pop("max_streams_per_connection"),
        buffered_bytes=options.pop("max_buffered_mib") << 20,
    )
    try:
        configure(os.environ)
        uvloop.run(_run(limits, **options))
    except (PickerError, KubeError, LogLevelError, OSError) as error:
        log.error("%s", error)
        sys.exit(2)


async def _run(
    limits: Limits,
    pool: str | None,
    namespace: str,
    endpoints: str | None,
    listen: str,
    health_listen: str,
    metrics_port: int,
    tls: str,
    grace: float,
    conformance: bool,
) -> None:
    if (pool is None) == (endpoints is None):
        raise PickerError("set either --pool or --endpoints")
    fixed = None if endpoints is None else [_parse("--endpoints", entry) for entry in endpoints.split(",") if entry]
    fleet = Fleet()
    metrics = Metrics(fleet)
    ports = _parse("--listen", listen), _parse("--health-listen", health_listen)
    served = await serve(Picker(fleet, metrics, conformance), metrics, *ports, server_context(tls), limits)
    log.info("picking on port %d, health on port %d", served.main.port, served.probes.port)
    if metrics_port:
        start_http_server(metrics_port, addr=ports[1].ip, registry=metrics.registry)
    stop = _stop_signal()
    defect = asyncio.gather(served.main.failed(), served.probes.failed())
    defect.add_done_callback(lambda _: stop.set())
    if fixed is not None:
        await _know(fleet, served, fixed)
        await stop.wait()
    else:
        await _follow_until(stop, fleet, served, namespace, pool or "")
    log.info("stopping: draining open streams for at most %g s", grace)
    failed = defect.done()
    await served.stop(grace)
    if failed:
        await defect


def _stop_signal() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    return stop


async def _know(fleet: Fleet, served: Served, endpoints: list[Endpoint]) -> None:
    """Update the endpoints; the first list makes the picker ready."""
    if fleet.update(endpoints):
        log.info("endpoints: %s", ", ".join(map(str, fleet.endpoints)) or "none")
        served.health.set_ready(True)


async def _follow_until(stop: asyncio.Event, fleet: Fleet, served: Served, namespace: str, pool: str) -> None:
    """Update `fleet` with the pool's pods until `stop`. Raises KubeError without a cluster."""
    async with connect() as api, asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follow(api, namespace, pool, partial(_know, fleet, served)))
        await stop.wait()
        following.cancel()


def _parse(option: str, text: str) -> Endpoint:
    ip, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdigit():
        raise PickerError(f"{option}: {text!r} is not ip:port")
    return Endpoint(ip.strip("[]"), int(port))


if __name__ == "__main__":
    main()
