"""Options that several commands take, said once."""

from __future__ import annotations

from pathlib import Path

import click

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
