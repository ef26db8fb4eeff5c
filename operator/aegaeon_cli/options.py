"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import click

from aegaeon_cli.errors import CliError

Command = TypeVar("Command", bound=Callable[..., Any])

manifests_option = click.option(
    "-f",
    "--filename",
    "manifests",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder (or file) with a GpuPool and its ModelPools.",
)
models_option = click.option(
    "--models",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for models whose hostPath is a plain name.  [default: ~/.cache/aegaeon/models]",
)


kind_option = click.option("--kind", metavar="KIND", help="Kind of models that have no kind of their own.")
device_option = click.option(
    "--device", default="h800-policy", show_default=True, metavar="NAME|FILE", help="Device whose constants are used."
)
trace_option = click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="CSV (or .csv.gz) with t_s, model, input_len, output_len; optionally tenant, session, pause_s, shared_len.",
)
slos_option = click.option(
    "--slos",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="CSV of model, ttft_s, tbt_s: objectives by model; others keep --slo-ttft and --slo-tbt.",
)


def number_option(
    name: str, what: str, help: str, *, default: float | None = None, metavar: str | None = None
) -> Callable[[Command], Command]:
    """An option that takes a finite number greater than 0; any other is refused with an error that names `what`."""
    return click.option(
        name,
        type=float,
        default=default,
        show_default=default is not None,
        metavar=metavar,
        callback=_positive(what),
        help=help,
    )


def slo_options(command: Command) -> Command:
    """The objective: --slo-ttft and --slo-tbt, seconds."""
    for name, what, default in (
        ("--slo-tbt", "seconds from token to token", 0.1),
        ("--slo-ttft", "seconds to the first token", 10.0),
    ):
        command = number_option(name, what, f"{what.capitalize()}.", default=default)(command)
    return command


def _positive(what: str) -> Callable[[click.Context, click.Parameter, float | None], float | None]:
    def check(_ctx: click.Context, option: click.Parameter, value: float | None) -> float | None:
        if value is not None and not 0 < value < inf:
            raise CliError(f"{option.opts[0]} {value:g}: must be {what}, greater than 0 and finite")
        return value

    return check
