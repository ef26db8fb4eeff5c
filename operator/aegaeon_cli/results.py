"""Results of a command as JSON, on standard output or in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from aegaeon_cli.errors import BadFileError


def write_json(output: str | None, results: dict[str, Any]) -> None:
    """Write them to the file of `--json`, or print them where it is `-`. Raises BadFileError."""
    text = json.dumps(results, indent=2, sort_keys=True) + "\n"
    if output == "-":
        click.echo(text, nl=False)
    elif output is not None:
        try:
            Path(output).write_text(text, "utf-8")
        except OSError as error:
            raise BadFileError(f"--json {output}: cannot be written ({error})") from error
