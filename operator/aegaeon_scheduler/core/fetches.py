"""Models that are on no node, because the nodes' disks have room for fewer than the catalog names: they are fetched
when requests wait for them, each by one node. What is idle there makes room; the node decides what that is.
"""

from __future__ import annotations

from aegaeon_scheduler.core.commands import Fetch
from aegaeon_scheduler.core.domain import Phase, Role
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model

_PATIENCE = 1.5  # of what a fetch is expected to take, before its requests wait no longer


class Fetches:
    """Says which node fetches what, once for all its instances, and for how long that may be waited for."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._latest: dict[str, int] = {}  # by node, the order in which they were last sent to fetch

    def demand(self, model: Model) -> None:
        """Where requests wait for it, no instance takes them and none is fetching it: have it fetched."""
        if not model.waiting or self._pool.fleet.of(model).served:
            return
        nodes: dict[str, list[Instance]] = {}
        for inst in self._pool.instances.values():
            phase = inst.phases.get(model.name)
            if phase is Phase.FETCHING and not inst.draining:
                return
            if phase is Phase.ABSENT and not inst.draining:
                nodes.setdefault(inst.node, []).append(inst)
        if nodes:
            node = min(nodes, key=lambda node: (not _serves(model, nodes[node]), self._latest.get(node, 0)))
            self._latest[node] = self._pool.tick()
            self._fetch(model, nodes[node])

    def _fetch(self, model: Model, instances: list[Instance]) -> None:
        self.expected(model, 0.0)
        reason = f"no node has it, and {len(model.waiting)} wait for it"
        for inst in instances:
            inst.enter(model, Phase.FETCHING)  # until it reports how far it is
            self._pool.send(inst, Fetch(model.name, model.config.identity), reason)

    def expected(self, model: Model, remaining_s: float) -> None:
        """An instance is to fetch it, or says how long that will take yet."""
        model.expected_by = self._pool.now + _PATIENCE * remaining_s + self._pool.config.hold_s


def _serves(model: Model, instances: list[Instance]) -> bool:
    """True when these instances can serve it without others."""
    roles = {inst.role for inst in instances}
    needed = {Role.PREFILL} if model.pools else {Role.PREFILL, Role.DECODE}
    return Role.UNIFIED in roles or roles >= needed
