"""`python -m aegaeon_picker`: from the start to SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
from prometheus_client import start_http_server

from aegaeon_picker.errors import PickerError
from aegaeon_picker.fleet import Endpoint, Fleet
from aegaeon_picker.metrics import Metrics
from aegaeon_picker.server import Picker, Served, serve
from aegaeon_picker.tls import server_credentials
from aegaeon_picker.watch import PoolWatch

log = logging.getLogger("aegaeon_picker")


@click.command()
@click.option("--pool", help="InferencePool whose pods are picked from.")
@click.option("--namespace", default="default", show_default=True, help="Its namespace.")
@click.option("--endpoints", help="Fixed endpoints `ip:port,ip:port` in place of a pool.")
@click.option("--listen", default="0.0.0.0:9002", show_default=True, help="Where Envoy's streams arrive.")
@click.option("--health-listen", default="0.0.0.0:9003", show_default=True, help="gRPC health, without TLS.")
@click.option("--metrics-port", default=9090, show_default=True, help="Prometheus metrics; 0: none.")
@click.option("--tls", default="selfSigned", show_default=True, help="`selfSigned`, `off`, or a folder with tls.crt.")
@click.option("--grace", default=130.0, show_default=True, help="Seconds that open streams have at the end.")
@click.option("--conformance", is_flag=True, help="Obey the headers of GIE's conformance suite. Never in production.")
def main(**options: object) -> None:
    """Pick the gateway pod for each request of a stock inference gateway."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(_run(**options))  # type: ignore[arg-type]  # click gives what _run declares
    except (PickerError, RuntimeError, OSError) as error:
        log.error("%s", error)
        sys.exit(2)


async def _run(
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
    fleet = Fleet()
    metrics = Metrics(fleet)
    picker = Picker(fleet, metrics, conformance)
    served = await serve(picker, listen, health_listen, server_credentials(tls))
    log.info("picking on port %d, health on port %d", served.port, served.health_port)
    if metrics_port:
        start_http_server(metrics_port, registry=metrics.registry)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    with _followed(fleet, served, pool, namespace, endpoints):
        await stop.wait()
    log.info("stopping: open streams have %g s to end", grace)
    await served.stop(grace)


@contextmanager
def _followed(fleet: Fleet, served: Served, pool: str | None, namespace: str, endpoints: str | None) -> Iterator[None]:
    """Keep `fleet` and readiness as the pool, or the fixed list, says. Raises PickerError."""
    if (pool is None) == (endpoints is None):
        raise PickerError("give either --pool or --endpoints")
    loop, tasks = asyncio.get_running_loop(), set()

    def take(newest: list[Endpoint]) -> None:
        if fleet.update(newest):
            log.info("endpoints: %s", ", ".join(map(str, fleet.endpoints)) or "none")
            tasks.add(task := loop.create_task(served.ready(fleet.known)))
            task.add_done_callback(tasks.discard)

    if endpoints is not None:
        take([_parse(each) for each in endpoints.split(",") if each])
        yield
        return

    def tell(newest: list[Endpoint]) -> None:
        loop.call_soon_threadsafe(take, newest)

    watch = PoolWatch(namespace, pool or "", tell)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


def _parse(text: str) -> Endpoint:
    ip, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdigit():
        raise PickerError(f"--endpoints: {text!r} is not ip:port")
    return Endpoint(ip.strip("[]"), int(port))


if __name__ == "__main__":
    main()
