"""Errors of the command line: each is a sentence with a remedy, and the exit status is 2."""

from __future__ import annotations


class CliError(Exception):
    """An error that a person can correct."""


class NoAnswerError(CliError):
    """A running stack does not answer."""


class RefusedError(CliError):
    """The operation is not possible on what runs."""


class BadFileError(CliError):
    """A file given on the command line cannot be used."""
