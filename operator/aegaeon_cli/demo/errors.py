"""DemoError
|- StackError    the stack did not come up, or died
`- TrafficError  the stack gave an answer that cannot be used
"""

from __future__ import annotations

from aegaeon_cli.errors import CliError


class DemoError(CliError):
    """The demo cannot go on; the message says why and what to do."""


class StackError(DemoError):
    """The stack did not come up, or died."""


class TrafficError(DemoError):
    """The stack gave an answer that cannot be used."""
