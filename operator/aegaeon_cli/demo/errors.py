"""StackError  the stack did not come up, or died"""

from __future__ import annotations

from aegaeon_cli.errors import CliError


class StackError(CliError):
    """The message says why and what to do."""
