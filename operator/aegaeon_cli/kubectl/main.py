"""The `kubectl-aegaeon` command: kubectl finds it by its name, and hands on what follows `kubectl aegaeon`."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import click

from aegaeon_cli.errors import CliError
from aegaeon_cli.main import UserError

# name: one line for `kubectl aegaeon --help`; the module and its command have the same name
_COMMANDS = {
    "top": "Watch a pool: engines, models, sequences, decisions.",
    "ps": "List the models of pools: where each is, what waits, what runs.",
    "doctor": "Say what is wrong with the installation and its pools.",
    "logs": "Print what all pods of a pool say of a model, by time.",
}


class PluginGroup(click.Group):
    """Lists commands without importing them; turns errors that a person can put right into sentences."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        if find_spec("kubernetes") is None:
            raise UserError("this needs the client of Kubernetes: pip install 'aegaeon[kubectl]'")
        command: click.Command = getattr(importlib.import_module(f"aegaeon_cli.kubectl.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as error:
            raise UserError(str(error)) from error


@click.command(cls=PluginGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aegaeon")
def main() -> None:
    """Look at Aegaeon's pools of a cluster.

    \b
    Example:
      kubectl aegaeon ps --all-namespaces
      kubectl aegaeon logs llama -f
    """


def run() -> None:
    """The entry point; help shows the command as people type it."""
    main(prog_name="kubectl aegaeon")
