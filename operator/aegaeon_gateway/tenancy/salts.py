"""Whose prompts may share KV cache: a salt for each tenant, which engines mix into the names of its blocks.

Otherwise every answer would tell, by `cached_tokens` and by the time to its first token, how much of its prompt
another client has sent. A salt is an HMAC of who asks under a secret of the pool, so no client can name another's.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from aegaeon_gateway.config import PrefixScope
from aegaeon_gateway.errors import ConfigError
from aegaeon_gateway.tenancy.model import Tenant

log = logging.getLogger(__name__)

_SALT_BYTES = 16
_LEAST_BYTES = 16
_LOOK_AGAIN_S = 1.0


class PrefixSalts:
    """`of` a request. The secret's file is looked at again at most once a second.

    With another secret, what was cached before is found by no new request; nothing else changes.
    """

    def __init__(self, scope: PrefixScope, file: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a file the secret is this process' own: other gateways of the pool then share nothing with it.

        Raises ConfigError when the file cannot be used.
        """
        self._scope = scope
        self._file = file
        self._clock = clock
        self._looked_at = clock()
        self._secret = os.urandom(32) if file is None else _read(file)

    def of(self, tenant: Tenant, share: str, cache_salt: str) -> bytes:
        """Empty: shared by the whole pool. `share`: the group of the ModelPool, if it is in one; `cache_salt`: what the
        client asks to be kept apart by, within what it shares otherwise."""
        who = self._group(tenant, share)
        if who == ("pool",) and not cache_salt:
            return b""
        return hmac.digest(self._current(), orjson.dumps([who, cache_salt]), hashlib.sha256)[:_SALT_BYTES]

    def _group(self, tenant: Tenant, share: str) -> tuple[str, ...]:
        if self._scope == "pool":
            return ("pool",)
        if share:
            return "share", share
        return ("keyless",) if tenant.anonymous else ("tenant", tenant.name)

    def _current(self) -> bytes:
        now = self._clock()
        if self._file is not None and now - self._looked_at >= _LOOK_AGAIN_S:
            self._looked_at = now
            try:
                self._secret = _read(self._file)
            except ConfigError as error:
                log.warning("the secret of prefixes stays as it was: %s", error)
        return self._secret


def _read(file: Path) -> bytes:
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    if len(secret) < _LEAST_BYTES:
        raise ConfigError(f"{file}: holds {len(secret)} bytes; a secret has {_LEAST_BYTES} at least")
    return secret
