"""`aegaeon top`: the live view of a running pool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live

from aegaeon_cli.errors import NoAnswerError
from aegaeon_cli.pool_view import PoolView
from aegaeon_cli.status import read_status, watch_status
from aegaeon_operator.podrunner import default_base, find_run
from aegaeon_proto.v1.gateway_pb2 import PoolStatus

PATIENCE_S = 10.0  # a scheduler restarts within this time


@click.command()
@click.option("--run", "run", metavar="DIR|ADDRESS", help="Folder of a run, or a scheduler's gRPC address (host:port).")
@click.option("--once", is_flag=True, help="Print the status once and exit.")
@click.option("--interval", type=click.FloatRange(0.05, 60), default=0.5, show_default=True, help="Seconds.")
def top(*, run: str | None, once: bool, interval: float) -> None:
    """Watch the pool that runs on this machine: engines, models, sequences, decisions.

    \b
    Example:
      aegaeon top
      aegaeon top --once --run 127.0.0.1:7000
    """
    target = scheduler_of(run)
    if once:
        Console().print(PoolView().show(asyncio.run(read_status(target))))
        return
    try:
        asyncio.run(live(_watch(target, interval)))
    except KeyboardInterrupt:
        return


def scheduler_of(run: str | None) -> str:
    """The gRPC target of the scheduler that the option names; without one, of the only run of this user."""
    if run is not None and not Path(run).is_dir() and ":" in run:
        return run
    return find_run(default_base(), None if run is None else Path(run)).scheduler


async def live(statuses: AsyncIterator[PoolStatus]) -> None:
    """Draw each status over the previous one until they end."""
    view = PoolView()
    with Live(screen=True, auto_refresh=False) as screen:
        async for status in statuses:
            screen.update(view.show(status), refresh=True)


async def _watch(target: str, interval_s: float) -> AsyncIterator[PoolStatus]:
    """Yield statuses endlessly, reconnecting broken streams. Raises NoAnswerError when none arrives for PATIENCE_S."""
    last_answer = -PATIENCE_S
    while True:
        try:
            async for status in watch_status(target, interval_s):
                last_answer = time.monotonic()
                yield status
        except NoAnswerError:
            if time.monotonic() - last_answer > PATIENCE_S:
                raise
        await asyncio.sleep(interval_s)
