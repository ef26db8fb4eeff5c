"""`aegaeon replay`: feeds recorded events to the scheduler's core and compares its commands."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from aegaeon_cli.errors import BadFileError


@click.command()
@click.argument("log", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def replay(log: Path) -> None:
    """Replay LOG, written by `aegaeon up --record LOG`; the exit status is 1 when the commands differ.

    \b
    Example:
      aegaeon replay events.log
    """
    from aegaeon_scheduler.core.errors import CoreError
    from aegaeon_scheduler.core.log import replay as run

    try:
        result = run(log)
    except CoreError as error:
        raise BadFileError(str(error)) from error
    except (OSError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise BadFileError(f"{log}: is not an event log; `aegaeon up --record FILE` writes one ({error})") from error
    counts = f"{result.events} events, {result.commands} commands, recorded by version {result.version}"
    if result.same:
        click.echo(f"identical commands: {counts}")
        return
    click.echo(f"different commands: {counts}; the first difference: {result.difference}")
    sys.exit(1)
