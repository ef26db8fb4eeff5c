"""Files of credentials for a model's source: Secrets that Kubernetes mounts, or files that a person wrote."""

from __future__ import annotations

import configparser
from pathlib import Path

_S3_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


class CredentialsError(Exception):
    """A file of credentials cannot be read, or is not of its form. Never says what is in it."""


def token_of(file: str) -> str:
    """The token in a file; empty without a file. Raises CredentialsError."""
    return _read(file).strip() if file else ""


def s3_keys(file: str) -> dict[str, str]:
    """Of an AWS credentials file, what boto3's clients take; nothing without a file. Raises CredentialsError."""
    if not file:
        return {}
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(_read(file), source=file)
        profile = parser["default"]
    except (configparser.Error, KeyError):  # what configparser says quotes lines of the file
        message = f"{file}: not an AWS credentials file with a profile `default`; write one"
        raise CredentialsError(message) from None
    return {name: profile[name] for name in _S3_KEYS if name in profile}


def _read(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(f"{file}: cannot be read: {error}; check the source's credentialsFile") from error
