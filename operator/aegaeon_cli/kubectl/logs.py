"""`kubectl aegaeon logs`: the lines of a pool's pods that concern one model, as one log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import click

from aegaeon_cli.errors import CliError, RefusedError
from aegaeon_cli.kubectl.access import Json, Where, cluster_options, output_option
from aegaeon_cli.kubectl.log_lines import Line, about, merged, names, touches
from aegaeon_cli.kubectl.log_streams import Follower, Part, complete_log
from aegaeon_cli.kubectl.pools import Pod, pods
from aegaeon_operator.reconcile.cluster.facts import Key

_UNITS = {"s": 1, "m": 60, "h": 3600}
_AT_ONCE = 8
_NAMED = 20  # names of models in a sentence


@click.command()
@click.argument("model")
@cluster_options
@output_option
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines, also of pods that start later.")
@click.option("--since", metavar="DURATION", help="Only lines of the last 90s, 10m or 2h.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each pod.")
@click.option("--pool", metavar="NAME", help="The GpuPool, when several serve a model of that name.")
@click.option("--all", "all_lines", is_flag=True, help="All lines of the pods whose log names the model.")
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
    """Print the log lines of schedulers, gateways and engines that concern a MODEL, ordered by time, with their pods.

    At most every ten seconds a line counts the requests that were held, refused, moved to another engine or computed
    again; changes of the leading scheduler are included, and so is a container's log before its last restart. Logs of
    deleted pods are not available.
    With -o json, prints one object a line. The exit status is 1 when the log of a pod cannot be read.

    \b
    Example:
      kubectl aegaeon logs llama --since 10m
      kubectl aegaeon logs llama -f -o json
    """
    key, part = pool_of(where, model, pool), Part(_seconds(since), tail)
    unread: list[str] = []
    if follow:
        lines = _followed(where, key, part, model, all_lines)
    else:
        lines = _so_far(where, key, part, model, all_lines, unread)
    try:
        for line in lines:
            click.echo(_as_json(line) if output == "json" else f"{line.time} {line.pod} {line.text}")
    except KeyboardInterrupt:
        return
    for why in unread:
        click.echo(why, err=True)
    if unread:
        raise SystemExit(1)


def pool_of(where: Where, model: str, pool: str | None = None) -> Key:
    """The GpuPool whose pods serve the model; `pool` selects among several. Raises CliError."""
    serving = [(_key(model_pool), _names(model_pool)) for model_pool in where.pools("modelpools")]
    serving = [(key, served) for key, served in serving if pool in (None, key.name)]
    keys = sorted({key for key, served in serving if model in served})
    if len(keys) == 1:
        return keys[0]
    if keys:
        pools = ", ".join("/".join(key) for key in keys)
        raise CliError(f"model {model} is served by several GpuPools: {pools}; select one with --pool NAME, or with -n")
    of = f" of GpuPool {pool}" if pool else ""
    names = sorted({name for _, served in serving for name in served})
    known = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    raise CliError(f"no ModelPool{of} in {where.place} serves a model {model}; they serve {known or 'none'}")


def _key(model_pool: Json) -> Key:
    ref, metadata = model_pool["spec"]["gpuPoolRef"], model_pool["metadata"]
    return Key(ref.get("namespace") or metadata["namespace"], ref["name"])


def _names(model_pool: Json) -> set[str]:
    """The names of its models and adapters."""
    models = model_pool["spec"]["models"]
    return {entry["name"] for model in models for entry in (model, *model.get("adapters", ()))}


def _so_far(where: Where, key: Key, part: Part, model: str, all_lines: bool, unread: list[str]) -> Iterator[Line]:
    """The lines so far, read in parallel: a pool may have hundreds of pods. Adds to `unread` why a log cannot be
    read."""

    def log_of(pod: Pod) -> list[Line]:
        try:
            return complete_log(where, key, pod, part)
        except RefusedError:  # every other log would be refused as well
            raise
        except CliError as error:
            unread.append(str(error))
            return []

    pool_pods = pods(where, key)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        read = list(threads.map(log_of, pool_pods))
    is_named = names(model)
    if all_lines:
        return merged(log for log in read if any(is_named(line.text) for line in log))
    return merged(about(log, touches(model)) for log in read)


def _followed(where: Where, key: Key, part: Part, model: str, all_lines: bool) -> Iterator[Line]:
    def choose(lines: Iterable[Line]) -> Iterator[Line]:
        return about(lines, names(model) if all_lines else touches(model), then_all=all_lines)

    return Follower(where, key, part, choose).lines()


def _seconds(duration: str | None) -> int | None:
    """Parse a duration. Raises CliError when it is not valid."""
    if duration is None:
        return None
    match = re.fullmatch(r"(\d+)([smh])", duration)
    if match is None or not int(match[1]):
        raise CliError(f"--since {duration}: not a duration; use a form such as 90s, 10m or 2h")
    return int(match[1]) * _UNITS[match[2]]


def _as_json(line: Line) -> str:
    return json.dumps({"time": line.time, "pod": line.pod, "line": line.text})
