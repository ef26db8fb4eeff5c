"""Errors before and while pods run; every message names the place and the remedy.

OperatorError
  ManifestError     a manifest is wrong
  PreflightError    the machine cannot run what the manifests ask for
  RunnerError       a pod could not be started or kept running
  SettingsError     a variable or a file that the operator's environment names is wrong
"""

from __future__ import annotations

from collections.abc import Sequence


class OperatorError(Exception):
    """An error that a user can correct; `str()` is the message for that user."""


class ManifestError(OperatorError):
    """One or more sentences, each naming file, document, field and what is allowed."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class PreflightError(OperatorError):
    """The machine lacks something: each sentence names it and says how to get it."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class RunnerError(OperatorError):
    """A pod did not start or did not become ready."""


class SettingsError(OperatorError):
    """A setting of the operator is invalid."""
