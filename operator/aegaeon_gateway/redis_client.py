"""Connections to Redis, for everything that gateways share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider


class PasswordFile(CredentialProvider):
    """The password of now: to renew it is to replace the file, and the next connection has the new one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get_credentials(self) -> tuple[str]:
        """Raises OSError, which means that Redis is unavailable."""
        return (self._path.read_text("utf-8").strip(),)

    async def get_credentials_async(self) -> tuple[str]:
        """The same: a small local file."""
        return self.get_credentials()


@dataclass(frozen=True, slots=True)
class RedisServer:
    """Where it is. Files: its password, and the authorities to check its certificate against."""

    url: str
    password: Path | None = None
    authorities: Path | None = None

    def client(self, timeout_s: float, *, texts: bool) -> redis.asyncio.Redis:
        """`timeout_s`: after that long without an answer Redis counts as unavailable; `texts` instead of bytes."""
        options: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
        options["retry"] = Retry(NoBackoff(), 1)  # a connection that was closed while idle is opened again
        if self.password is not None:
            options["credential_provider"] = PasswordFile(self.password)
        if self.authorities is not None:
            options["ssl_ca_certs"] = str(self.authorities)
        return redis.asyncio.Redis.from_url(self.url, decode_responses=texts, **options)
