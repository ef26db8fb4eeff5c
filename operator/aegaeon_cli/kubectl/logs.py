"""`kubectl aegaeon logs`: what the pods of a pool say of one model, as one log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import click

from aegaeon_cli.errors import CliError, RefusedError
from aegaeon_cli.kubectl.access import Json, Where, cluster_options, output_option
from aegaeon_cli.kubectl.log_lines import Line, about, merged, names, touches
from aegaeon_cli.kubectl.log_streams import Follower, Part, whole
from aegaeon_cli.kubectl.pools import Pod, pods
from aegaeon_operator.reconcile.cluster.facts import Key

_UNITS = {"s": 1, "m": 60, "h": 3600}
_AT_ONCE = 8
_NAMED = 20  # names of models in a sentence


@click.command()
@click.argument("model")
@cluster_options
@output_option
@click.option("-f", "--follow", is_flag=True, help="Go on, with pods that come later, too.")
@click.option("--since", metavar="DURATION", help="Of the last 90s, 10m or 2h alone.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Of the last N lines of each pod alone.")
@click.option("--pool", metavar="NAME", help="The GpuPool, where several serve a model of that name.")
@click.option("--all", "all_lines", is_flag=True, help="Every line of the pods whose log names the model.")
def logs(
    *,
    where: Where,
    model: str,
    output: str,
    follow: bool,
    since: str | None,
    tail: int | None,
    pool: str | None,
    all_lines: bool,
) -> None:
    """Print what schedulers, gateways and engines say of a MODEL, by time, each line with its pod.

    Every ten seconds at most it has how many requests were held, refused, moved to another engine or computed again,
    and each change of the scheduler that leads. What a container said before it was started again is part of it; the
    logs of pods that are gone went with them.
    With -o json, a line for each. The exit status is 1 where the log of a pod cannot be read.

    \b
    Example:
      kubectl aegaeon logs llama --since 10m
      kubectl aegaeon logs llama -f -o json
    """
    key, part = pool_of(where, model, pool), Part(_seconds(since), tail)
    unread: list[str] = []
    if follow:
        found = _followed(where, key, part, model, all_lines)
    else:
        found = _so_far(where, key, part, model, all_lines, unread)
    try:
        for line in found:
            click.echo(_as_json(line) if output == "json" else f"{line.time} {line.pod} {line.text}")
    except KeyboardInterrupt:
        return
    for why in unread:
        click.echo(why, err=True)
    if unread:
        raise SystemExit(1)


def pool_of(where: Where, model: str, pool: str | None = None) -> Key:
    """Whose pods serve the model; of several, the GpuPool of this name. Raises CliError."""
    serving = [(_key(one), _names(one)) for one in where.pools("modelpools")]
    serving = [(key, served) for key, served in serving if pool in (None, key.name)]
    found = sorted({key for key, served in serving if model in served})
    if len(found) == 1:
        return found[0]
    if found:
        pools = ", ".join("/".join(key) for key in found)
        raise CliError(f"model {model} is served by several GpuPools: {pools}; name one with --pool, or -n")
    of = f" of GpuPool {pool}" if pool else ""
    names = sorted({name for _, served in serving for name in served})
    known = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    raise CliError(f"no ModelPool{of} in {where.place} serves a model {model}; they serve {known or 'none'}")


def _key(model_pool: Json) -> Key:
    ref, metadata = model_pool["spec"]["gpuPoolRef"], model_pool["metadata"]
    return Key(ref.get("namespace") or metadata["namespace"], ref["name"])


def _names(model_pool: Json) -> set[str]:
    """Of its models and their adapters."""
    models = model_pool["spec"]["models"]
    return {one["name"] for model in models for one in (model, *model.get("adapters", ()))}


def _so_far(where: Where, key: Key, part: Part, model: str, all_lines: bool, unread: list[str]) -> Iterator[Line]:
    """Side by side: a pool may have hundreds of pods. Why a log cannot be read is added to `unread`."""

    def log_of(pod: Pod) -> list[Line]:
        try:
            return whole(where, key, pod, part)
        except RefusedError:  # and so is every other log
            raise
        except CliError as error:
            unread.append(str(error))
            return []

    there = pods(where, key)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        read = list(threads.map(log_of, there))
    is_named = names(model)
    if all_lines:
        return merged(log for log in read if any(is_named(line.text) for line in log))
    return merged(about(log, touches(model)) for log in read)


def _followed(where: Where, key: Key, part: Part, model: str, all_lines: bool) -> Iterator[Line]:
    def choose(lines: Iterable[Line]) -> Iterator[Line]:
        return about(lines, names(model) if all_lines else touches(model), then_all=all_lines)

    return Follower(where, key, part, choose).lines()


def _seconds(duration: str | None) -> int | None:
    """Raises CliError for what is no duration."""
    if duration is None:
        return None
    found = re.fullmatch(r"(\d+)([smh])", duration)
    if found is None or not int(found[1]):
        raise CliError(f"--since {duration}: give a duration as 90s, 10m or 2h")
    return int(found[1]) * _UNITS[found[2]]


def _as_json(line: Line) -> str:
    return json.dumps({"time": line.time, "pod": line.pod, "line": line.text})
