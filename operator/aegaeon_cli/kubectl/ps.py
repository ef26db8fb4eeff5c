"""`kubectl aegaeon ps`: a line for each model of each pool, from the status of its scheduler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import click

from aegaeon_cli.errors import CliError
from aegaeon_cli.kubectl.access import Where, cluster_options, output_option
from aegaeon_cli.kubectl.pools import pools, the_pool
from aegaeon_cli.kubectl.tables import aligned
from aegaeon_cli.kubectl.top import read
from aegaeon_cli.welcome import phase_text
from aegaeon_operator.reconcile.cluster.facts import Key
from aegaeon_proto.v1.gateway_pb2 import ModelTraffic, PoolStatus

_COLUMNS = ("namespace", "pool", "model", "state", "engines", "queued", "running", "tokens", "on-time")


@dataclass(frozen=True, slots=True)
class Line:
    """A model. `engines` have its weights resident; `turn_of`: those of them that compute for it."""

    namespace: str
    pool: str
    model: str
    state: str
    engines: tuple[str, ...]
    turn_of: tuple[str, ...]
    queued: int
    running: int
    output_tokens: int
    on_time: float | None


@click.command()
@click.argument("pool", required=False)
@cluster_options
@output_option
def ps(*, where: Where, pool: str | None, output: str) -> None:
    """List the models of a POOL, or of all pools of the namespace: state, engines, queued and running requests.

    An asterisk marks the engine that computes for the model.

    \b
    Example:
      kubectl aegaeon ps --all-namespaces
      kubectl aegaeon ps demo -o json
    """
    keys = [the_pool(where, pool)] if pool else pools(where)
    rows, silent = asyncio.run(_all(where, keys))
    if output == "json":
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
    elif keys:
        for line in aligned([_COLUMNS, *map(_row, rows)]):
            click.echo(line)
    else:
        click.echo(f"no GpuPool in {where.place}", err=True)
    for why in silent:
        click.echo(why, err=True)
    if silent:
        click.echo("run `kubectl aegaeon doctor` to find the cause", err=True)
        raise SystemExit(1)


async def _all(where: Where, keys: Iterable[Key]) -> tuple[list[Line], list[str]]:
    """The lines of all pools, queried in parallel, and the errors of those that did not answer."""
    rows: list[Line] = []
    silent: list[str] = []
    answers = await asyncio.gather(*(_one(where, key) for key in keys))
    for answer in answers:
        if isinstance(answer, CliError):
            silent.append(str(answer))
        else:
            rows += answer
    return rows, silent


async def _one(where: Where, key: Key) -> list[Line] | CliError:
    try:
        return list(lines(key, await read(where, key)))
    except CliError as error:
        return error


def lines(key: Key, status: PoolStatus) -> Iterator[Line]:
    """The lines of one pool, in the order of its scheduler."""
    alive = [engine for engine in status.instances if engine.alive]
    for model in status.models:
        yield Line(
            namespace=key.namespace,
            pool=key.name,
            model=model.model,
            state=_state(model, status),
            engines=tuple(engine.instance for engine in alive if model.model in engine.resident),
            turn_of=tuple(engine.instance for engine in alive if model.model == engine.running),
            queued=model.queued,
            running=model.running,
            output_tokens=model.output_tokens,
            on_time=model.tokens_on_time / model.output_tokens if model.output_tokens else None,
        )


def _state(model: ModelTraffic, status: PoolStatus) -> str:
    """The phase as ModelPools show it, in lower case; `loading` and `resident` come first."""
    alive = [engine for engine in status.instances if engine.alive]
    if any(model.model == engine.loading for engine in alive):
        return "loading"
    if any(model.model in engine.resident for engine in alive):
        return "resident"
    return phase_text(model)


def _row(line: Line) -> tuple[str, ...]:
    engines = " ".join(f"{engine}*" if engine in line.turn_of else engine for engine in line.engines)
    on_time = "-" if line.on_time is None else f"{line.on_time:.1%}"
    numbers = (line.queued, line.running, line.output_tokens)
    return (line.namespace, line.pool, line.model, line.state, engines or "-", *map(str, numbers), on_time)
