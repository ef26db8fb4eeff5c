"""Who leads: a Lease of coordination.k8s.io. The others wait with everything loaded; who loses it ends at once.

Every leadership has a *term*, a number in the Lease that rises with each of them, so that third parties can tell an old
leader from a new one.
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
    """`life_s`: a leader that was not heard of for so long is gone. It renews, and others look, every `period_s`.

    `over_s`: one whose last renewal is older than this by the clocks of both need not be watched for a life; more than
    any two clocks differ by, and for leaders whose peers refuse older terms.
    """

    namespace: str
    holder: str
    name: str = "aegaeon-operator"
    life_s: float = 10.0
    period_s: float = 2.0
    over_s: float | None = None
    owner: dict[str, str] | None = None  # the Lease goes with it
    memory: Path | None = (
        None  # file of a pod's own: where it led before, it leads again while the API server is unavailable
    )


def _microseconds() -> int:
    """Since 1970: above every term before it, also when the Lease was deleted meanwhile."""
    return time.time_ns() // 1000


class Leadership:
    """`acquire`, then `keep` or `replaced` for as long as it lasts, then `release`. `fresh` makes terms."""

    def __init__(self, api: ApiServer, settings: LeaseSettings, fresh: Callable[[], int] = _microseconds) -> None:
        self._api = api
        self._settings = settings
        self._fresh = fresh
        self._seen: tuple[str, float] = ("", 0.0)
        self._term = 0
        self._holder = ""
        self._away = False
        self._renewed = 0.0  # by the loop's clock: when the try began that took or renewed the Lease

    @property
    def term(self) -> int:
        """Of this leadership; 0 before the first."""
        return self._term

    async def acquire(self) -> None:
        """Wait until this process leads."""
        _log.info("waiting to lead as %s", self._settings.holder)
        while not await self._try():
            if self._away and (remembered := self._remembered()):
                self._term = remembered
                _log.warning("the API server is unavailable: leading in the term of this pod's former life")
                break
            await asyncio.sleep(self._settings.period_s)
        _log.info("leading in term %d", self._term)

    async def keep(self) -> None:
        """Renew; returns when the lease is lost, also while a call of the API server hangs: before the lease runs out,
        so that at no time two act."""
        settings = self._settings
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout_at(self._renewed + settings.life_s - settings.period_s):
                    await asyncio.sleep(settings.period_s)
                    await self._try()
        _log.error("the lease could not be renewed: another process may lead now")

    async def replaced(self) -> None:
        """Renew; returns when another holder is in the Lease. For leaders whose peers refuse older terms: while the API
        server is unavailable it is unknown who leads, and this one goes on."""
        while True:
            await asyncio.sleep(self._settings.period_s)
            if not await self._try() and self._holder not in ("", self._settings.holder):
                _log.error("the lease is held by %s: it leads now", self._holder)
                self._remember(0)
                return

    async def release(self) -> None:
        """Let the next one take over at once."""
        self._remember(0)
        try:
            async with asyncio.timeout(self._settings.life_s / 2):
                await self._give_up()
        except KubeError as error:
            _log.warning("the lease was not released: %s", error)
        except TimeoutError:
            _log.warning("the lease was not released: the API server does not answer")

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
        """Take the Lease, or renew it; False when it is another's, or that is unknown."""
        self._away, began = False, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._settings.life_s / 2):
                taken = await self._take()
            self._renewed = began if taken else self._renewed
            return taken
        except KubeError as error:
            self._away = error.status == 0 or error.status >= _SERVER_ERROR
            if error.status != _CONFLICT:
                _log.warning("lease: %s", error)
        except TimeoutError:
            self._away = True
            _log.warning("lease: the API server does not answer")
        return False

    def _remembered(self) -> int:
        """The term of a former life; 0 without one. Peers that have heard of a higher one refuse it."""
        file = self._settings.memory
        try:
            return int(file.read_text("ascii")) if file else 0
        except (OSError, ValueError):  # not there, or half written
            return 0

    def _remember(self, term: int) -> None:
        """A full disk costs the memory, and not the leadership."""
        if self._settings.memory:
            try:
                self._settings.memory.write_text(str(term), "ascii")
            except OSError as error:
                _log.warning("the term is not remembered: %s: %s", self._settings.memory, error.strerror)

    async def _take(self) -> bool:
        lease = await self._read()
        self._holder = (lease or {}).get("spec", {}).get("holderIdentity") or ""
        if lease and not self._free(lease):
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

    def _free(self, lease: Json) -> bool:
        """Ours, free, not renewed for its life by our own clock, or long over by any clock."""
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
        mine = spec.get("holderIdentity") == settings.holder
        known = _term_of(lease)
        going_on = mine and self._term == known > 0
        term = known if going_on else max(known + 1, self._fresh())
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
                "acquireTime": spec.get("acquireTime", now) if mine else now,
                "leaseTransitions": spec.get("leaseTransitions", 0) + (not mine),
            },
        }


def _term_of(lease: Json) -> int:
    """0 where there is none, or where people wrote something else."""
    try:
        return int(lease["metadata"]["annotations"][TERM])
    except (KeyError, TypeError, ValueError):
        return 0
