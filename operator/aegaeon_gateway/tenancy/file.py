"""The tenants file: JSON that others write (`aegaeon up`, or Kubernetes from a Secret) and that may change at any time.

It, and the key files that it names, are looked at again at most once a second; what cannot be read is logged, and what
was known before stays true: a half-written file locks no tenant out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from aegaeon_gateway.errors import ConfigError
from aegaeon_gateway.tenancy.model import SHORTEST_KEY, Directory, Quota, Tenant, digest
from aegaeon_proto.engine.catalog import Terms, Tier
from aegaeon_proto.settings import read_settings

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 1.0
_Stamp = tuple[tuple[str, int, int, int], ...]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Quota(_Strict):
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None


class _Terms(_Strict):
    weight: Annotated[int, Field(ge=1, le=100)] = 1
    tier: Tier = Tier.STANDARD


class _Tenant(_Strict):
    name: Annotated[str, Field(min_length=1)]
    models: tuple[str, ...]
    key_sha256: tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...] = ()
    key_files: tuple[str, ...] = ()
    quota: _Quota = _Quota()
    strict: bool = False
    terms: dict[str, _Terms] = {}


class _File(_Strict):
    tenants: tuple[_Tenant, ...] = ()
    open_models: tuple[str, ...] | None = ()  # None: every model
    model_quotas: dict[str, _Quota] = {}


class TenantsFile:
    """`current()` is the directory as of a second ago at most. Without a path everything is open to every client."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ConfigError when the file cannot be used at the start."""
        self._path = path
        self._clock = clock
        self._files: tuple[Path, ...] = (path,) if path else ()
        self._directory = Directory()
        self._looked_at = clock()
        self._stamp: _Stamp = ()
        if path:
            self._load(path)

    def current(self) -> Directory:
        """Read again first when something has changed."""
        now = self._clock()
        if self._path is None or now - self._looked_at < _LOOK_AGAIN_S:
            return self._directory
        self._looked_at = now
        if self._stamps() != self._stamp:
            try:
                self._load(self._path)
            except ConfigError as error:
                log.warning("the tenants stay as they were: %s", error)
        return self._directory

    def _load(self, path: Path) -> None:
        stamp = _stamp(path)  # each before its file is read: what changes meanwhile is read again
        file = read_settings(path, _File, ConfigError)
        key_files = tuple(path.parent / name for tenant in file.tenants for name in tenant.key_files)
        stamps = tuple(_stamp(key_file) for key_file in key_files)
        self._directory = _directory(file, path.parent)
        self._files, self._stamp = (path, *key_files), (stamp, *stamps)
        log.info("%d tenants", len(file.tenants))

    def _stamps(self) -> _Stamp:
        return tuple(_stamp(file) for file in self._files)


def _stamp(file: Path) -> tuple[str, int, int, int]:
    try:
        status = file.stat()
    except (OSError, ValueError):  # a name with a null byte is of no file
        return (str(file), 0, 0, 0)
    return (str(file), status.st_mtime_ns, status.st_ino, status.st_size)  # times have steps of 4 ms


def _directory(file: _File, folder: Path) -> Directory:
    """Raises ConfigError with everything that is wrong with keys."""
    keys: dict[str, str] = {}
    problems: list[str] = []
    held = [(tenant.name, key) for tenant in file.tenants for key in _keys(tenant, folder, problems)]
    problems += [
        f"tenants {keys[key]!r} and {name!r} have the same key; give each its own"
        for name, key in held
        if keys.setdefault(key, name) != name
    ]
    if problems:
        raise ConfigError("; ".join(dict.fromkeys(problems)))
    return Directory(
        tenants=tuple(map(_tenant, file.tenants)),
        keys=keys,
        open_models=None if file.open_models is None else frozenset(file.open_models),
        model_quotas={name: _quota(quota) for name, quota in file.model_quotas.items()},
    )


def _keys(tenant: _Tenant, folder: Path, problems: list[str]) -> list[str]:
    """Hashes of a tenant's keys. A key file holds one key a line: during a rotation the old one and the new one."""
    hashes = list(tenant.key_sha256)
    for name in tenant.key_files:
        try:
            lines = (folder / name).read_text("utf-8").split()
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file can have
            problems.append(f"key file {name} of tenant {tenant.name!r} cannot be read: {error}")
            continue
        if not lines:
            problems.append(f"key file {name} of tenant {tenant.name!r} is empty; write a key into it")
        if short := sum(len(line) < SHORTEST_KEY for line in lines):
            log.warning(
                "key file %s of tenant %r: %d of its keys have fewer than %d characters and can be guessed; "
                "a later release will refuse them",
                *(name, tenant.name, short, SHORTEST_KEY),
            )
        hashes += [digest(line) for line in lines]
    return hashes


def _tenant(tenant: _Tenant) -> Tenant:
    terms = {model: Terms(entry.tier, entry.weight) for model, entry in tenant.terms.items()}
    return Tenant(tenant.name, frozenset(tenant.models), _quota(tenant.quota), tenant.strict, terms)


def _quota(quota: _Quota) -> Quota:
    return Quota(quota.requests_per_minute, quota.tokens_per_minute)
