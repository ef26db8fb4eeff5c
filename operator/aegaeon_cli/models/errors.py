"""ModelsError
|- TextError     the standard library's sources are not on this machine
|- ForeignError  the folder holds something else
`- StoppedError the training was asked to stop
"""

from __future__ import annotations

from aegaeon_cli.errors import CliError


class ModelsError(CliError):
    """The models cannot be made; the message says why and what to do."""


class TextError(ModelsError):
    """The standard library's sources are not on this machine."""


class ForeignError(ModelsError):
    """The folder holds something else; it is not touched."""


class StoppedError(ModelsError):
    """The training was asked to stop before its last step."""
