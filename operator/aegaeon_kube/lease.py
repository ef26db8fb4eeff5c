"""Leader election with a Lease of coordination.k8s.io. Standbys wait, ready to work; a leader that loses it exits.

Every leadership has a *term*, a rising number in the Lease, by which other processes distinguish an old leader from a
new leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aegaeon_kube.errors import KubeError
from aegaeon_kube.server import ApiServer

Json = dict[str, Any]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
TERM = "serving.aegaeon.io/term"
_NOT_FOUND, _CONFLICT, _SERVER_ERROR = 404, 409, 500
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Settings of the election. `life_s`: time after which a leader that did not renew counts as lost. It renews, and

    standbys read the Lease, every `period_s`.
    `over_s`: age of a renewal, by the clocks of both, after which a standby leads without watching for `life_s`; more
    than any two clocks differ by, and only for leaders whose peers refuse older terms.
    """

    namespace: str
    holder: str
    name: str = "aegaeon-operator"
    life_s: float = 10.0
    period_s: float = 2.0
    over_s: float | None = None
    owner: dict[str, str] | None = None  # the Lease is garbage-collected with it
    memory: Path | None = None  # file of the pod with its last term, to lead again while the API server is unavailable


def _microseconds() -> int:
    """Return microseconds since 1970, which exceed every earlier term even if the Lease was deleted meanwhile."""
    return time.time_ns() // 1000


class Leadership:
    """A leadership: `acquire`, then `keep` or `replaced` while it lasts, then `release`. `fresh` returns a new term."""

    def __init__(self, api: ApiServer, settings: LeaseSettings, fresh: Callable[[], int] = _microseconds) -> None:
        self._api = api
        self._settings = settings
        self._fresh = fresh
        self._seen: tuple[str, float] = ("", 0.0)
        self._term = 0
        self._holder = ""
        self._away = False
        self._renewed = 0.0  # by the loop's clock: start of the last successful acquisition or renewal

    @property
    def term(self) -> int:
        """Term of this leadership; 0 before the first."""
        return self._term

    async def acquire(self) -> None:
        """Wait until this process leads."""
        _log.info("waiting to lead as %s", self._settings.holder)
        while not await self._try():
            if self._away and (remembered := self._remembered()):
                self._term = remembered
                _log.warning("the API server is unavailable: leading in the term before this pod's restart")
                break
            await asyncio.sleep(self._settings.period_s)
        _log.info("leading in term %d", self._term)

    async def keep(self) -> None:
        """Renew; return when the Lease is lost, even while a call of the API server hangs, and before it expires, so
        that there are never two leaders."""
        settings = self._settings
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout_at(self._renewed + settings.life_s - settings.period_s):
                    await asyncio.sleep(settings.period_s)
                    await self._try()
        _log.error("the Lease could not be renewed: another process may lead now")

    async def replaced(self) -> None:
        """Renew; return when the Lease has another holder. For leaders whose peers refuse older terms: they continue
        while the API server is unavailable, when another leader is possible."""
        while True:
            await asyncio.sleep(self._settings.period_s)
            if not await self._try() and self._holder not in ("", self._settings.holder):
                _log.error("the Lease is held by %s, which leads now", self._holder)
                self._remember(0)
                return

    async def release(self) -> None:
        """Release the Lease, so that another process can lead at once."""
        self._remember(0)
        try:
            async with asyncio.timeout(self._settings.life_s / 2):
                await self._give_up()
        except KubeError as error:
            _log.warning("the Lease was not released: %s", error)
        except TimeoutError:
            _log.warning("the Lease was not released: the API server does not answer")

    @property
    def _path(self) -> str:
        return f"{LEASES.format(namespace=self._settings.namespace)}/{self._settings.name}"

    async def _give_up(self) -> None:
        lease = await self._read()
        if lease and lease["spec"].get("holderIdentity") == self._settings.holder:
            lease["spec"]["holderIdentity"] = ""
            await self._api.call("PUT", self._path, body=lease)

    async def _read(self) -> Json | None:
        try:
            return await self._api.call("GET", self._path)
        except KubeError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def _try(self) -> bool:
        """Acquire or renew the Lease; False if another process holds it or the API server fails."""
        self._away, began = False, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._settings.life_s / 2):
                taken = await self._take()
            self._renewed = began if taken else self._renewed
            return taken
        except KubeError as error:
            self._away = error.status == 0 or error.status >= _SERVER_ERROR
            if error.status != _CONFLICT:
                _log.warning("Lease: %s", error)
        except TimeoutError:
            self._away = True
            _log.warning("Lease: the API server does not answer")
        return False

    def _remembered(self) -> int:
        """Return the term before a restart; 0 without one. Peers that know a higher term refuse it."""
        file = self._settings.memory
        try:
            return int(file.read_text("ascii")) if file else 0
        except (OSError, ValueError):  # absent, or partly written
            return 0

    def _remember(self, term: int) -> None:
        """Write the term to the file; an error, such as a full disk, does not end the leadership."""
        if self._settings.memory:
            try:
                self._settings.memory.write_text(str(term), "ascii")
            except OSError as error:
                _log.warning("cannot store the term: %s: %s", self._settings.memory, error.strerror)

    async def _take(self) -> bool:
        lease = await self._read()
        self._holder = (lease or {}).get("spec", {}).get("holderIdentity") or ""
        if lease and not self._is_available(lease):
            return False
        written = self._written(lease or {})
        if lease is None:
            await self._api.call("POST", LEASES.format(namespace=self._settings.namespace), body=written)
        else:
            await self._api.call("PUT", self._path, body=written)
        term = _term_of(written)
        if term != self._term:
            self._remember(term)
        self._term = term
        self._holder = self._settings.holder
        return True

    def _is_available(self, lease: Json) -> bool:
        """Return whether the Lease is own, released, expired by this process's clock, or long expired by any clock."""
        if self._holder in ("", self._settings.holder):
            return True
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
        return time.monotonic() - self._seen[1] >= self._settings.life_s or self._long_over(lease)

    def _long_over(self, lease: Json) -> bool:
        if self._settings.over_s is None:
            return False
        try:
            renewed = datetime.strptime(lease["spec"]["renewTime"], _TIME).replace(tzinfo=UTC)
        except (KeyError, TypeError, ValueError):  # written by another program
            return False
        return datetime.now(UTC) - renewed >= timedelta(seconds=self._settings.over_s)

    def _written(self, lease: Json) -> Json:
        settings, now = self._settings, datetime.now(UTC).strftime(_TIME)
        spec, metadata = lease.get("spec", {}), lease.get("metadata") or {}
        own = spec.get("holderIdentity") == settings.holder
        known = _term_of(lease)
        renewal = own and self._term == known > 0
        term = known if renewal else max(known + 1, self._fresh())
        annotations = {**(metadata.get("annotations") or {}), TERM: str(term)}
        head: Json = {"name": settings.name, "namespace": settings.namespace}
        if settings.owner:
            head["ownerReferences"] = [settings.owner]
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**head, **metadata, "annotations": annotations},
            "spec": {
                "holderIdentity": settings.holder,
                "leaseDurationSeconds": int(settings.life_s),
                "renewTime": now,
                "acquireTime": spec.get("acquireTime", now) if own else now,
                "leaseTransitions": spec.get("leaseTransitions", 0) + (not own),
            },
        }


def _term_of(lease: Json) -> int:
    """Return the term of a Lease; 0 if it has none or an invalid one."""
    try:
        return int(lease["metadata"]["annotations"][TERM])
    except (KeyError, TypeError, ValueError):
        return 0
