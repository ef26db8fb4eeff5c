"""The `kubectl-aegaeon` command: kubectl finds it by its name and passes on the arguments of `kubectl aegaeon`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

import click

from aegaeon_cli.main import LazyGroup, UserError

# name: one line for `kubectl aegaeon --help`; the module and its command have the same name
_COMMANDS = {
    "top": "Watch a pool: engines, models, sequences, decisions.",
    "ps": "List the models of pools: state, engines, queued and running requests.",
    "doctor": "Report what is wrong with the installation and its pools.",
    "logs": "Print the log lines of a pool's pods that concern a model, ordered by time.",
}


class PluginGroup(LazyGroup):
    """The commands of the plugin, which need the client of Kubernetes."""

    known: ClassVar = {name: (f"aegaeon_cli.kubectl.{name}", name, summary) for name, summary in _COMMANDS.items()}

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.known and find_spec("kubernetes") is None:
            raise UserError("the Kubernetes client for Python is not installed: pip install 'aegaeon[kubectl]'")
        return super().get_command(ctx, cmd_name)


@click.command(cls=PluginGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aegaeon")
def main() -> None:
    """Inspect the Aegaeon pools of a cluster.

    \b
    Example:
      kubectl aegaeon ps --all-namespaces
      kubectl aegaeon logs llama -f
    """


def run() -> None:
    """The entry point; help shows the command as people type it."""
    main(prog_name="kubectl aegaeon")
