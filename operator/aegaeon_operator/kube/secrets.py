"""Secrets referenced by ModelPools: read concurrently with reconciles, each with a result of its own.

A reconcile waits only for Secrets that were never read. Every few seconds the versions of all Secrets are compared,
without their content, and changed ones are read again. Nothing of other Secrets is kept.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import SECRETS, Cluster
from aegaeon_operator.kube.gather import secret_text
from aegaeon_operator.reconcile.cluster.facts import Key, SecretName, SecretsRead

_log = logging.getLogger(__name__)
# Period of comparisons; with KEPT_S, a key that is removed from its Secret is invalid within 20 s.
EVERY_S = 10.0
# The content of a deleted Secret counts for this time: `kubectl replace --force` deletes and creates it again.
KEPT_S = 5.0
_TICK_S = 0.5
_AT_ONCE = 16  # concurrent reads
_FIRST_WAIT_S = 5.0  # for Secrets that were never read
_LIST_S = 30.0
_FIRST_RETRY_S = 1.0
_FORGET_S = 30.0  # after the last reference: a replaced ModelPool references it again
Text = dict[str, str]


@dataclass(slots=True)
class _Cached:
    """A Secret as last read. `content`: last good content; `trouble`: error of the last read.
    `gone_at`: time since which it does not exist. `again_at`: time of the next read after an error.
    """

    content: Text | None = None
    version: str = ""
    trouble: str = ""
    gone_at: float = math.inf
    again_at: float = math.inf
    delay_s: float = _FIRST_RETRY_S
    named_at: float = 0.0
    first: asyncio.Task[None] | None = None

    @property
    def outcome(self) -> tuple[Text | None, str]:
        """Content and error for a reconcile."""
        return self.content, self.trouble

    def succeed(self, content: Text, version: str) -> None:
        """Record a successful read."""
        self.content, self.version, self.trouble = content, version, ""
        self.gone_at = self.again_at = math.inf
        self.delay_s = _FIRST_RETRY_S

    def fail(self, trouble: str, now: float) -> None:
        """Record an error, or that it does not exist (`trouble` is ""), and schedule the next read with backoff."""
        self.trouble, self.version = trouble, ""
        self.again_at = now + self.delay_s
        self.delay_s = min(2 * self.delay_s, EVERY_S)
        if trouble:
            self.gone_at = math.inf
            return
        self.gone_at = min(self.gone_at, now)
        if now - self.gone_at >= KEPT_S:
            self.content = None


@dataclass(slots=True)
class Secrets:
    """The Secrets of all pools. `changed` is called with the pools that reference a changed Secret; `clock` in seconds;
    `namespaces`: those of the operator, None: all."""

    cluster: Cluster
    clock: Callable[[], float]
    changed: Callable[[Collection[Key]], None]
    namespaces: tuple[str | None, ...] = (None,)
    _held: dict[SecretName, _Cached] = field(default_factory=dict)
    _named: dict[Key, frozenset[SecretName]] = field(default_factory=dict)
    _compared_at: float = -math.inf
    _since: dict[str | None, str] = field(default_factory=dict)
    """resourceVersion up to which changes are known, by namespace"""
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def of(self, pool: Key, names: Iterable[SecretName]) -> SecretsRead:
        """Return the Secrets that the pool's ModelPools reference; wait for those that were never read."""
        named = self._named[pool] = frozenset(names)
        now = self.clock()
        for name in named:
            held = self._held.setdefault(name, _Cached(trouble="it has not been read yet"))
            held.named_at = now
            if held.first is None:
                held.first = asyncio.create_task(self._read(name))
        unread = [task for name in named if (task := self._held[name].first) and not task.done()]
        if unread:
            await asyncio.wait(unread, timeout=_FIRST_WAIT_S)
        known = {name: self._held[name] for name in named}
        return SecretsRead(
            {name: secret.content for name, secret in known.items() if secret.content is not None},
            {name: secret.trouble for name, secret in known.items() if secret.trouble},
        )

    def forget(self, pool: Key) -> None:
        """Drop a deleted pool's references."""
        self._named.pop(pool, None)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            await self.step()

    async def step(self) -> None:
        """Read the Secrets that are due, and compare versions."""
        now = self.clock()
        self._drop_unnamed(now)
        await self._read_all([name for name, held in self._held.items() if held.again_at <= now])
        if not self._held:
            self._compared_at = now  # new Secrets are read at once
        elif now - self._compared_at >= EVERY_S:
            self._compared_at = now
            await asyncio.gather(*map(self._compare, self.namespaces))

    def _drop_unnamed(self, now: float) -> None:
        named = frozenset().union(*self._named.values())
        for name, held in list(self._held.items()):
            if name in named:
                held.named_at = now
            elif now - held.named_at >= _FORGET_S:
                del self._held[name]

    async def _compare(self, namespace: str | None) -> None:
        """Read Secrets with another version; read all if versions cannot be listed: a single Secret that cannot be
        decrypted makes every list fail."""
        since = self._since.pop(namespace, "")
        try:
            async with asyncio.timeout(_LIST_S):
                versions = await self.cluster.versions(SECRETS, namespace, self._held, since)
        except (KubeError, TimeoutError) as error:
            await self._uncompared(namespace, since, error)
            return
        self._since[namespace] = versions.until
        before = {name: self._held[name].version for name in self._of(namespace)}
        await self._read_all([name for name, version in before.items() if versions.of(name, version) != version])

    async def _uncompared(self, namespace: str | None, since: str, error: Exception) -> None:
        if since:  # the API server no longer has the changes since then
            _log.info("changes of Secrets are unknown (%s): comparing all", error or "no answer")
            await self._compare(namespace)
            return
        _log.warning("Secrets of %s cannot be listed (%s)", namespace or "the cluster", error or "no answer")
        if not isinstance(error, KubeError) or error.status:
            await self._read_all(self._of(namespace))

    def _of(self, namespace: str | None) -> list[SecretName]:
        return [name for name in self._held if namespace in (None, name[0])]

    async def _read_all(self, names: Iterable[SecretName]) -> None:
        await asyncio.gather(*map(self._read, names))

    async def _read(self, name: SecretName) -> None:
        async with self._slots:
            held = self._held.get(name)
            if held is None:
                return
            before = held.outcome
            try:
                secret = await self.cluster.get(SECRETS, *name)
            except KubeError as error:
                held.fail(str(error), self.clock())
                _log.warning("Secret %s/%s cannot be read: %s", *name, error)
            else:
                if secret is None:
                    held.fail("", self.clock())
                else:
                    held.succeed(secret_text(secret), secret["metadata"].get("resourceVersion", ""))
        if held.outcome != before:
            self.changed([pool for pool, named in self._named.items() if name in named])
