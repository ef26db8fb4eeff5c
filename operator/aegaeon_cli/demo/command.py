"""`aegaeon demo`: makes the models, runs the stack, sends chats, checks the answers, and removes everything."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from aegaeon_cli.demo.errors import StackError
from aegaeon_cli.demo.results import results, table
from aegaeon_cli.demo.stack import Stack, free_port
from aegaeon_cli.demo.traffic import CLIENTS, ROUNDS, Traffic, conversations
from aegaeon_cli.demo.watch import Watcher
from aegaeon_cli.folders import QUICKSTART, models_folder, quickstart
from aegaeon_cli.models import make_models, questions
from aegaeon_operator.podrunner.preflight import port_in_use
from aegaeon_operator.spec import Pool, load_manifests
from aegaeon_proto.v1.gateway_pb2 import PoolStatus
from aegaeon_scheduler.core.domain import Slo

LOG_LINES = 100


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line."""

    manifests: Path
    models: Path
    port: int | None
    clients: int
    rounds: int


@click.command()
@click.option(
    "-f",
    "--filename",
    "manifests",
    type=click.Path(exists=True, path_type=Path),
    default=quickstart,
    show_default=str(QUICKSTART),
    metavar="DIR",
    help="Folder of manifests to run.",
)
@click.option(
    "--models",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the four models; they are made when they are missing.  [default: ~/.cache/aegaeon/models]",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the OpenAI API, instead of the manifest's.")
@click.option(
    "--clients", type=click.IntRange(1, 16), default=CLIENTS, show_default=True, help="Clients of each model."
)
@click.option("--rounds", type=click.IntRange(1, 100), default=ROUNDS, show_default=True, help="Chats of each client.")
def demo(*, manifests: Path, models: Path | None, port: int | None, clients: int, rounds: int) -> None:
    """Serve four models on two engines, chat with them, and check every token.

    \b
    Example:
      aegaeon demo -f examples/quickstart/
    """
    options = Options(manifests, (models or models_folder()).absolute(), port, clients, rounds)
    make_models(options.models, click.echo)
    sys.exit(0 if asyncio.run(_demo(options, _console())) else 1)


def _console() -> Console:
    """A console as wide as the terminal; 120 columns for a log."""
    return Console(width=None if sys.stdout.isatty() else 120)


async def _demo(options: Options, console: Console) -> bool:
    pool = load_manifests(options.manifests, options.models).pools[0]
    console.print(f"starting: aegaeon up -f {options.manifests}")
    began = time.monotonic()
    port = options.port or other_port(pool.model_pools[0].spec.gateway.port, console)
    async with Stack(options.manifests, options.models, port) as stack:
        console.print(f"ready in {time.monotonic() - began:.1f} s at {stack.state.url}/v1")
        traffic, status = await _talk(stack, pool, options, console)
    console.print(table(results(traffic.exchanges, status, objectives(pool))))
    good = _judge(traffic, pool)
    for left in stack.leftovers:
        console.print(f"left behind: {left}", style="red")
    if not good:
        click.echo("the stack's last lines:\n" + "\n".join(stack.log().splitlines()[-LOG_LINES:]), err=True)
    return good and not stack.leftovers


def other_port(preferred: int, console: Console) -> int | None:
    """A free port when the preferred one, which many programs use, is taken."""
    if not port_in_use("127.0.0.1", preferred):
        return None
    port = free_port()
    console.print(f"port {preferred} is in use; the demo uses port {port}")
    return port


async def _talk(stack: Stack, pool: Pool, options: Options, console: Console) -> tuple[Traffic, PoolStatus]:
    served = {model.name for model in pool.models}
    known = {name: texts for name, texts in questions(options.models).items() if name in served}
    if not known:
        raise StackError(
            f"{options.models}: no models made by `aegaeon models make`; choose another folder with --models"
        )
    traffic = Traffic(stack.state.url)
    watcher = Watcher(stack.state.scheduler, traffic.exchanges, console)
    try:
        async with watcher.watching():
            await traffic.run(conversations(known, options.clients, options.rounds))
    finally:
        await traffic.close()
    return traffic, watcher.status


def objectives(pool: Pool) -> dict[str, Slo]:
    """The objective of every model of the pool, by its served name."""
    return {model.name: Slo(model.slo.ttft, model.slo.tbt) for model in pool.models}


def directories(pool: Pool) -> dict[str, Path]:
    """The folder of every model of the pool that is served from one."""
    return {model.name: Path(model.source.host_path) for model in pool.models if model.source.host_path}


def _judge(traffic: Traffic, pool: Pool) -> bool:
    from aegaeon_cli.demo.check import check, ties_sentence  # imported late: torch takes seconds to import

    result = check(traffic.exchanges, directories(pool))
    for difference in result.differences:
        click.echo(f"different: {difference}")
    failed = [exchange for exchange in traffic.exchanges if exchange.error]
    for exchange in failed:
        click.echo(f"failed: {exchange.chat.model}: {exchange.error}")
    click.echo(ties_sentence(result))
    click.echo(result.sentence)
    return result.identical == result.outputs and not failed
