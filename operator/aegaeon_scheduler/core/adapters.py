"""Which adapters of a model cannot be served on an instance: those that failed there, and where prompts are computed to
be decoded elsewhere on the node, those that failed on all that decode there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aegaeon_scheduler.core.domain import Lacking, Role
from aegaeon_scheduler.core.state import Instance, Model


def lacking(model: Model, instances: Collection[Instance]) -> Lacking:
    """Adapters that cannot be served, with the reasons, by instance; without the instances that serve all of them."""
    if not any(model.name in inst.without for inst in instances):
        return {}
    reasons_of = {inst.id: {**_behind(model, inst), **_own(model, inst)} for inst in instances}
    return {instance: reasons for instance, reasons in reasons_of.items() if reasons}


def _own(model: Model, inst: Instance) -> Mapping[str, str]:
    return inst.without.get(model.name, {})


def _behind(model: Model, inst: Instance) -> dict[str, str]:
    """Adapters that no instance that would decode after this one serves."""
    if inst.role is not Role.PREFILL or model.pools:
        return {}
    after = [_own(model, partner) for partner in inst.partners]
    if not after:
        return {}
    return {adapter: why for adapter, why in after[0].items() if all(adapter in reasons for reasons in after)}
