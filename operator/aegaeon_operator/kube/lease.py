"""Who leads: a Lease of coordination.k8s.io. The others wait with everything loaded; who loses it ends at once.

A process that cannot renew ends before the lease runs out, so at no time do two of them act.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import CONFLICT, LEASES, Cluster
from aegaeon_operator.reconcile.cluster.facts import Json

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """`life_s`: a leader that was not heard of for so long is gone. It renews, and others look, every `period_s`."""

    namespace: str
    holder: str
    name: str = "aegaeon-operator"
    life_s: float = 10.0
    period_s: float = 2.0


class Leadership:
    """`acquire`, then `keep` for as long as it lasts, then `release`."""

    def __init__(self, cluster: Cluster, settings: LeaseSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._seen: tuple[str, float] = ("", 0.0)

    async def acquire(self) -> None:
        """Wait until this process leads."""
        _log.info("waiting to lead as %s", self._settings.holder)
        while not await self._try():  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(self._settings.period_s)
        _log.info("leading")

    async def keep(self) -> None:
        """Renew; returns when the lease is lost, also while a call of the API server hangs."""
        settings, clock = self._settings, asyncio.get_running_loop().time
        renewed = clock()
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout_at(renewed + settings.life_s - settings.period_s):
                    await asyncio.sleep(settings.period_s)
                    began = clock()
                    if await self._try():
                        renewed = began
        _log.error("the lease could not be renewed: somebody else may lead now")

    async def release(self) -> None:
        """Let the next one take over at once."""
        try:
            lease = await self._cluster.get(LEASES, self._settings.namespace, self._settings.name)
            if lease and lease["spec"].get("holderIdentity") == self._settings.holder:
                lease["spec"]["holderIdentity"] = ""
                await self._cluster.replace(lease)
        except KubeError as error:
            _log.warning("the lease was not released: %s", error)

    async def _try(self) -> bool:
        settings = self._settings
        try:
            lease = await self._cluster.get(LEASES, settings.namespace, settings.name)
            if lease is None:
                await self._cluster.create(self._written({}))
                return True
            if not self._free(lease):
                return False
            await self._cluster.replace(self._written(lease))
        except KubeError as error:
            if error.status != CONFLICT:
                _log.warning("lease: %s", error)
            return False
        return True

    def _free(self, lease: Json) -> bool:
        """Ours, nobody's, or not renewed for its life by our own clock: clocks of others are not compared."""
        holder = lease["spec"].get("holderIdentity") or ""
        if holder in ("", self._settings.holder):
            return True
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, time.monotonic())
        return time.monotonic() - self._seen[1] >= self._settings.life_s

    def _written(self, lease: Json) -> Json:
        settings, now = self._settings, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = lease.get("spec", {})
        mine = spec.get("holderIdentity") == settings.holder
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": lease.get("metadata") or {"name": settings.name, "namespace": settings.namespace},
            "spec": {
                "holderIdentity": settings.holder,
                "leaseDurationSeconds": int(settings.life_s),
                "renewTime": now,
                "acquireTime": spec.get("acquireTime", now) if mine else now,
                "leaseTransitions": spec.get("leaseTransitions", 0) + (not mine),
            },
        }
