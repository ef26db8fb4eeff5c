"""Errors of the command line that are not another package's: each is one sentence with a remedy, exit status 2."""

from __future__ import annotations


class CliError(Exception):
    """What a person can put right."""


class NoAnswerError(CliError):
    """A running stack does not answer."""


class RefusedError(CliError):
    """What is asked for cannot be done to what runs."""


class BadFileError(CliError):
    """A file given on the command line cannot be used."""
