"""Options that several commands take, said once."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path

import click

from aegaeon_cli.errors import CliError

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


def positive(what: str) -> Callable[[click.Context, click.Parameter, float | None], float | None]:
    """A callback for options: refuses all but finite numbers greater than 0 in a sentence that names the option."""

    def check(_ctx: click.Context, option: click.Parameter, value: float | None) -> float | None:
        if value is not None and not 0 < value < inf:
            raise CliError(f"{option.opts[0]} {value:g}: give {what}, greater than 0 and finite")
        return value

    return check
