"""Instances of one node: KV is handed off within a node, from prefill instances to decode instances."""

from __future__ import annotations

from collections.abc import Collection

from aegaeon_scheduler.core.domain import InstanceId, Phase, Role
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model


def strand(pool: Pool) -> list[Instance]:
    """Instances came, went or are about to: note, and return, those whose prefills have no decoder from now on.

    They have nothing beside them that decodes. Where that goes for the whole pool, everything waits for such a pair.
    """
    staying = [inst for inst in pool.instances.values() if not inst.draining]
    decoding = {inst.node for inst in staying if inst.role is not Role.PREFILL}
    useful = any(inst.role is not Role.DECODE and inst.node in decoding for inst in staying)
    found = []
    for inst in pool.instances.values():
        stranded = useful and inst.role is Role.PREFILL and inst.node not in decoding
        if stranded and not inst.stranded:
            found.append(inst)
        inst.stranded = stranded
    pool.fleet.changed()
    return found


def cut_off(model: Model, instances: Collection[Instance]) -> frozenset[InstanceId]:
    """Instances that prefill, and beside which the model failed on everything that decodes."""
    if model.pools or not model.failed:
        return frozenset()
    decoding: dict[str, list[Instance]] = {}
    for inst in instances:
        if inst.role is not Role.PREFILL:
            decoding.setdefault(inst.node, []).append(inst)
    failing = {node for node, some in decoding.items() if all(i.phases.get(model.name) is Phase.FAILED for i in some)}
    return frozenset(inst.id for inst in instances if inst.role is Role.PREFILL and inst.node in failing)
