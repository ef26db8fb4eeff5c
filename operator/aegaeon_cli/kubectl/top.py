"""`kubectl aegaeon top`: the live view of `aegaeon top`, for a pool of a cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing

import click
from google.protobuf.json_format import MessageToDict
from rich.console import Console

from aegaeon_cli.errors import NoAnswerError
from aegaeon_cli.kubectl.access import Where, cluster_options, output_option
from aegaeon_cli.kubectl.pools import scheduler, the_pool
from aegaeon_cli.pool_view import PoolView
from aegaeon_cli.status import watch_status
from aegaeon_cli.top import PATIENCE_S, live
from aegaeon_operator.reconcile.cluster.facts import Key
from aegaeon_proto.v1.gateway_pb2 import PoolStatus


@click.command()
@click.argument("pool", required=False)
@cluster_options
@output_option
@click.option("--once", is_flag=True, help="Print the status once and exit.")
@click.option("--interval", type=click.FloatRange(0.05, 60), default=1.0, show_default=True, help="Seconds.")
def top(*, where: Where, pool: str | None, output: str, once: bool, interval: float) -> None:
    """Watch a POOL: engines, models, sequences, decisions. Without a name, the only pool of the namespace.

    With -o json, prints each status as one line.

    \b
    Example:
      kubectl aegaeon top demo -n default
      kubectl aegaeon top demo --once -o json
    """
    statuses = watch(where, the_pool(where, pool), 0.0 if once else interval)
    try:
        asyncio.run(_print(statuses, output == "json", once))
    except KeyboardInterrupt:
        return


async def _print(statuses: AsyncIterator[PoolStatus], machine: bool, once: bool) -> None:
    if not machine and not once:
        await live(statuses)
        return
    view, console = PoolView(), Console()
    async for status in statuses:
        if machine:
            click.echo(json.dumps(as_json(status)))
        else:
            console.print(view.show(status))


async def watch(where: Where, key: Key, interval_s: float) -> AsyncGenerator[PoolStatus]:
    """Yield statuses of the pool from the leading scheduler; interval 0: only one. Raises NoAnswerError when no
    scheduler answers for PATIENCE_S, any other CliError at once."""
    clock = asyncio.get_running_loop().time
    last_answer = clock()
    while True:
        try:
            with ExitStack() as stack:
                target = await asyncio.to_thread(stack.enter_context, scheduler(where, key))
                async for status in watch_status(target, interval_s):
                    last_answer = clock()
                    yield status
                    if interval_s == 0:
                        return
        except NoAnswerError as error:
            if clock() - last_answer > PATIENCE_S:
                raise NoAnswerError(f"GpuPool {'/'.join(key)}: {error}") from None
        await asyncio.sleep(min(interval_s or 1.0, 1.0))


async def read(where: Where, key: Key) -> PoolStatus:
    """One status of the pool. Raises CliError."""
    async with aclosing(watch(where, key, 0.0)) as statuses:
        return await anext(statuses)


def as_json(status: PoolStatus) -> dict[str, object]:
    """The status with every field, including those that are zero."""
    fields: dict[str, object] = MessageToDict(
        status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return fields
