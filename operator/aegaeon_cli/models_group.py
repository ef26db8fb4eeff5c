"""`aegaeon models`: the tiny models that the quickstart serves."""

from __future__ import annotations

from pathlib import Path

import click

from aegaeon_cli.folders import models_folder


@click.group()
def models() -> None:
    """Tiny models of four architectures, made on this machine."""


@models.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), required=False)
def make(directory: Path | None) -> None:
    """Make the four models in DIRECTORY (by default where `aegaeon up` looks for them).

    \b
    Example:
      aegaeon models make
      aegaeon models make ./models && aegaeon up -f examples/quickstart/ --models ./models
    """
    from aegaeon_cli.models import make_models

    target = directory or models_folder()
    target.mkdir(parents=True, exist_ok=True)
    make_models(target, click.echo)
