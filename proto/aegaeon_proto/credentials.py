"""Files of credentials for a model's source: Secrets that Kubernetes mounts, or files that a person wrote.

The values are registered for redaction, so that no message repeats them (redaction.py).
"""

from __future__ import annotations

import configparser
import re
from pathlib import Path

from aegaeon_proto.redaction import remember

_S3_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_MOST_BYTES = 64 << 10
_LINE = re.compile(r"[\x21-\x7e]+")


class CredentialsError(Exception):
    """A file of credentials cannot be read, or has the wrong form. Never quotes its content."""


def token_of(file: str) -> str:
    """The token in a file: one line of printable ASCII, as a header can carry it. Empty without a file.

    Raises CredentialsError.
    """
    if not file:
        return ""
    token = _read(file).strip("\r\n\t ")
    remember(token.split())
    if not _LINE.fullmatch(token):
        raise CredentialsError(
            f"{file}: must hold one token: a single line of printable ASCII without spaces; check the source's "
            "credentialsFile or credentialsSecretRef"
        )
    return token


def proxy_user(file: str) -> tuple[str, str]:
    """User and password in a file: one line, USER:PASSWORD. Raises CredentialsError."""
    line = _read(file, "the GpuPool's egress.credentialsSecretRef").strip("\r\n\t ")
    user, colon, password = line.partition(":")
    remember([password])
    if not user or not colon or not _LINE.fullmatch(line):
        raise CredentialsError(f"{file}: must hold one line, USER:PASSWORD, of printable ASCII without spaces")
    return user, password


def s3_keys(file: str) -> dict[str, str]:
    """The keys of an AWS credentials file, as botocore's clients take them; empty without a file. Raises
    CredentialsError."""
    if not file:
        return {}
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(_read(file), source=file)
        profile = parser["default"]
    except (configparser.Error, KeyError):  # what configparser says quotes lines of the file
        message = f"{file}: not an AWS credentials file with a profile `default`; write one"
        raise CredentialsError(message) from None
    keys = {name: profile[name].strip() for name in _S3_KEYS if name in profile}
    remember(keys.values())
    for name, key in keys.items():
        if not _LINE.fullmatch(key):
            raise CredentialsError(f"{file}: {name} must be one line of printable ASCII without spaces")
    if not keys.keys() >= {"aws_access_key_id", "aws_secret_access_key"}:
        raise CredentialsError(f"{file}: the profile `default` needs aws_access_key_id and aws_secret_access_key")
    return keys


def _read(file: str, field: str = "the source's credentialsFile") -> str:
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise CredentialsError(f"{file}: cannot be read: {reason}; check {field}") from None
    if len(content) > _MOST_BYTES or not content.isascii():
        raise CredentialsError(f"{file}: cannot be read as credentials: must be ASCII, {_MOST_BYTES} bytes at most")
    return content.decode("ascii")
