"""`aegaeon replay`: the same events through the same brain; are its commands the same?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from aegaeon_cli.errors import BadFileError


@click.command()
@click.argument("log", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def replay(log: Path) -> None:
    """Replay LOG, which `aegaeon up --record LOG` wrote; exit status 1 when the commands are not the same.

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
        click.echo(f"the same commands: {counts}")
        return
    click.echo(f"not the same commands: {counts}; the first difference: {result.difference}")
    sys.exit(1)
