"""Secrets that ModelPools name: read beside the looks at pools, each with an outcome of its own.

A look waits for those alone that were never read. Every few seconds the API server says which Secrets have changed,
without their content; what is named and has another version is read again. Nothing of other Secrets is kept.
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
# Versions are compared this often: with KEPT_S, a key that is taken out of its Secret is dead within 20 s.
EVERY_S = 10.0
# What a Secret had counts for so long after it has vanished: `kubectl replace --force` deletes it and makes it again.
KEPT_S = 5.0
_TICK_S = 0.5
_AT_ONCE = 16  # reads side by side
_FIRST_WAIT_S = 5.0  # for what was never read
_LIST_S = 30.0
_FIRST_RETRY_S = 1.0
_FORGET_S = 30.0  # what no ModelPool names any more: one that is replaced names it again
Text = dict[str, str]


@dataclass(slots=True)
class _Held:
    """A Secret as it was last read: `content` is the last good one, `trouble` why the last try gave none.

    `gone_at`: it was missing then for the first time. `again_at`: a trouble is looked at again.
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
        """What a look sees of it."""
        return self.content, self.trouble

    def succeed(self, content: Text, version: str) -> None:
        """It was read."""
        self.content, self.version, self.trouble = content, version, ""
        self.gone_at = self.again_at = math.inf
        self.delay_s = _FIRST_RETRY_S

    def fail(self, trouble: str, now: float) -> None:
        """It could not be, or is not there (`trouble` is empty): tried again ever less often."""
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
    """Of all pools. `changed` is called with pools that name a Secret whose outcome is another; `clock` in seconds;
    `namespaces`: where the operator works, None: everywhere."""

    cluster: Cluster
    clock: Callable[[], float]
    changed: Callable[[Collection[Key]], None]
    namespaces: tuple[str | None, ...] = (None,)
    _held: dict[SecretName, _Held] = field(default_factory=dict)
    _named: dict[Key, frozenset[SecretName]] = field(default_factory=dict)
    _compared_at: float = -math.inf
    _since: dict[str | None, str] = field(default_factory=dict)
    """resourceVersion up to which changes are known, by namespace"""
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def of(self, pool: Key, names: Iterable[SecretName]) -> SecretsRead:
        """What is known of these, which the pool's ModelPools name. Waits for those that were never read."""
        named = self._named[pool] = frozenset(names)
        now = self.clock()
        for name in named:
            held = self._held.setdefault(name, _Held(trouble="it has not been read yet"))
            held.named_at = now
            if held.first is None:
                held.first = asyncio.create_task(self._read(name))
        unread = [task for name in named if (task := self._held[name].first) and not task.done()]
        if unread:
            await asyncio.wait(unread, timeout=_FIRST_WAIT_S)
        there = {name: self._held[name] for name in named}
        return SecretsRead(
            {name: one.content for name, one in there.items() if one.content is not None},
            {name: one.trouble for name, one in there.items() if one.trouble},
        )

    def forget(self, pool: Key) -> None:
        """The pool is gone."""
        self._named.pop(pool, None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            await self.step()

    async def step(self) -> None:
        """Read what is due."""
        now = self.clock()
        self._drop_unnamed(now)
        await self._read_all([name for name, held in self._held.items() if held.again_at <= now])
        if not self._held:
            self._compared_at = now  # the first are read first
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
        """Read again what has another version; all where that is not to be learned: one Secret that cannot be decrypted
        makes every list fail."""
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
        if since:  # changes of so long ago are not kept
            _log.info("what has changed of the Secrets is not known (%s): all are compared", error or "no answer")
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
                found = await self.cluster.get(SECRETS, *name)
            except KubeError as error:
                held.fail(str(error), self.clock())
                _log.warning("Secret %s/%s cannot be read: %s", *name, error)
            else:
                if found is None:
                    held.fail("", self.clock())
                else:
                    held.succeed(secret_text(found), found["metadata"].get("resourceVersion", ""))
        if held.outcome != before:
            self.changed([pool for pool, named in self._named.items() if name in named])
