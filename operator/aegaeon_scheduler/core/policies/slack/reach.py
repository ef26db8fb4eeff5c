"""How near a model's weights are, where host memory does not hold them all: on a device, in a node's memory, on disk.

Devices and host memory are one cache: a group is placed where a copy is, and a model's only copy is the last to go.
"""

from __future__ import annotations

from aegaeon_scheduler.core.domain import ModelName
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Weights


def near(pool: Pool, name: ModelName, inst: Instance) -> bool:
    """Returns whether the weights are on the instance, or in its node's memory."""
    weights = inst.weights.get(name)
    return (weights is not None and weights.unload is None) or pool.hosts.has(inst.node, name)


def lone(pool: Pool, name: ModelName, inst: Instance) -> bool:
    """Returns whether the weights on this instance are the only quick copy: dropped, they come back from a disk."""
    if pool.hosts.has(inst.node, name):
        return False
    return not any(other is not inst and near(pool, name, other) for other in pool.instances.values())


def idle_order(pool: Pool, inst: Instance, idle: list[Weights]) -> list[Weights]:
    """Weights in unload order: least recently used first, only copies of a model last."""
    if not pool.hosts.limited:
        return sorted(idle, key=lambda w: w.used)
    return sorted(idle, key=lambda w: (lone(pool, w.model.name, inst), w.used))


def past_host(pool: Pool, inst: Instance, stale_s: float) -> bool:
    """Returns whether a load from disk is to leave the node's host memory as it is: all models in it are still asked
    for.
    """
    cached = pool.hosts.cached(inst.node)
    since = pool.now - stale_s
    return cached is not None and all(pool.models[n].asked_at > since for n in cached if n in pool.models)


class Reach:
    """A picture for one pass. Disks read for one load at a time: a second one would make both late."""

    def __init__(self, pool: Pool, table: Table) -> None:
        self._pool = pool
        self._table = table
        self.limited = pool.hosts.limited
        self._reading = {inst.node for inst in pool.instances.values() if self.limited and self._reads(inst)}

    def _reads(self, inst: Instance) -> bool:
        """Returns whether an instance's weights lane has a model to read from the node's disk."""
        coming = [name for name, weights in inst.weights.items() if not weights.ready]
        return any(not self._pool.hosts.has(inst.node, name) for name in (*coming, *inst.wanted))

    def lone(self, inst: Instance) -> dict[ModelName, int]:
        """Bytes of each model whose only quick copy is here."""
        if not self.limited:
            return {}
        present = ((name, w) for name, w in inst.weights.items() if w.unload is None)
        return {name: w.slabs * inst.slab_bytes for name, w in present if lone(self._pool, name, inst)}

    def near(self, name: ModelName, inst: Instance) -> bool:
        """Returns whether a model's weights are on the instance, or in its node's memory."""
        return near(self._pool, name, inst)

    def may_read(self, name: ModelName, inst: Instance, node: str | None) -> bool:
        """Returns whether to read a model from this node's disk: it is near to no instance (of `node`, if set) that has
        no group of it yet, and the disk is free.
        """
        if inst.node in self._reading:
            return False
        instances = (i for i in self._pool.instances.values() if node in (None, i.node))
        return not any(self.near(name, i) and all(g.model.name != name for g in self._table.at(i)) for i in instances)

    def comes(self, name: ModelName, inst: Instance) -> None:
        """A group of the model was placed there."""
        if not self.near(name, inst):
            self._reading.add(inst.node)
