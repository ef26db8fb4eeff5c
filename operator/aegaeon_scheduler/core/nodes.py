"""Instances of one node: KV is handed off within a node, from prefill instances to decode instances."""

from __future__ import annotations

from aegaeon_scheduler.core.domain import Role
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance


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
