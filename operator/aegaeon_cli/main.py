"""The `aegaeon` command. Imports subcommands on use, so that `aegaeon --help` answers at once."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from aegaeon_cli.errors import CliError
from aegaeon_operator.errors import OperatorError
from aegaeon_simulator.errors import SimulatorError, WireViolationError

# name: (module, attribute, one line for `aegaeon --help`)
_COMMANDS = {
    "demo": ("aegaeon_cli.demo.command", "demo", "Four tiny models share two engines; every token is checked."),
    "up": ("aegaeon_cli.up", "up", "Run the pools of a folder of manifests on this machine."),
    "apply": ("aegaeon_cli.apply", "apply", "Change models and tenants of a running pool, without a restart."),
    "top": ("aegaeon_cli.top", "top", "Watch a running stack: engines, models, tokens, decisions."),
    "models": ("aegaeon_cli.models_group", "models", "Make the tiny models of the quickstart."),
    "doctor": ("aegaeon_cli.doctor", "doctor", "Check this machine for requirements of Aegaeon."),
    "calibrate": (
        "aegaeon_cli.calibrate",
        "calibrate",
        "Measure models on this machine and fit the latency constants.",
    ),
    "bench": (
        "aegaeon_cli.bench.command",
        "bench",
        "Measure and draw a switch of a real engine, a minute of a stack.",
    ),
    "simulate": (
        "aegaeon_cli.simulate",
        "simulate",
        "Run a trace through a policy on modelled GPUs: which tokens are on time?",
    ),
    "plan": ("aegaeon_cli.plan", "plan", "Find how many GPUs models need, and what that saves."),
    "figures": ("aegaeon_cli.figures", "figures", "Reproduce the paper's figures with every policy."),
    "replay": ("aegaeon_cli.replay", "replay", "Replay a recorded event log and compare the decisions."),
}


class UserError(click.ClickException):
    """An error printed as `Error: ...`, without a traceback."""

    exit_code = 2


class LazyGroup(click.Group):
    """Lists commands without importing them; prints errors that a person can correct as sentences."""

    known: ClassVar[Mapping[str, tuple[str, str, str]]] = _COMMANDS
    """by name: module, attribute, one line for --help"""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.known)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.known:
            return None
        module, attribute, _ = self.known[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in self.known.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except WireViolationError:  # a bug, whose traceback is wanted
            raise
        except (OperatorError, CliError, SimulatorError) as error:
            raise UserError(str(error)) from error


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aegaeon")
def main() -> None:
    """Serve many language models on few GPUs by scheduling tokens instead of requests.

    \b
    Example:
      aegaeon models make && aegaeon up -f examples/quickstart/
    """
