"""Price of preempting a group for another one: seconds of copies, and of the engine where it idles meanwhile."""

from __future__ import annotations

from aegaeon_scheduler.core.estimate import Estimates
from aegaeon_scheduler.core.policies.slack.group import Load
from aegaeon_scheduler.core.state import Instance


def absence_s(estimates: Estimates, victim: Load, comer: Load, inst: Instance) -> float:
    """Seconds that a victim is absent at least: its KV goes out, the other group comes in, and it comes back."""
    estimate = estimates.of(victim.group.model.name, inst.device)
    return (
        2.0 * estimate.kv_s(victim.nbytes - victim.weights)
        + estimate.load_s(victim.weights)
        + in_s(estimates, comer, inst)
    )


def in_s(estimates: Estimates, load: Load, inst: Instance) -> float:
    """Seconds until a group that waits can run on an instance: copies, and its first steps if they are the first."""
    estimate = estimates.of(load.group.model.name, inst.device)
    weights = inst.weights.get(load.group.model.name)
    loaded = weights is not None and weights.ready and weights.unload is None
    copies_s = estimate.kv_s(load.nbytes - load.weights) + (0.0 if loaded else estimate.load_s(load.weights))
    return copies_s + new_s(estimates, load, inst)


def new_s(estimates: Estimates, load: Load, inst: Instance) -> float:
    """Seconds that the first steps of a model take on an instance that it has not run on yet; else 0."""
    name = load.group.model.name
    return 0.0 if name in inst.tried else estimates.of(name, inst.device).first_s
