"""A machine as the simulator sees it, from what models take through all processes of a stack."""

from __future__ import annotations

import random
from dataclasses import astuple, dataclass, replace
from statistics import median

from benchmarks.truth_stack import PROBE_BATCH, PROBE_PROMPT, PROBE_TOKENS, Alone

from aegaeon_simulator.devices import Device

UNEVEN = 0.03  # of a model's step: about what probes of it differ by


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine as the simulator sees it. `gateway_s`: added to every token's time, engines do not feel it."""

    device: Device
    gateway_s: float


def through_the_stack(found: Device, alone: dict[str, Alone]) -> Machine:
    """Steps as long as each model alone takes on the stack; what is left of its first token is the gateway's way."""
    kinds, ways = {}, []
    for name, kind in found.kinds.items():
        k, seen = kind.latency, alone[name]
        context = PROBE_PROMPT + 3 * PROBE_TOKENS // 4
        c = max(0.0, (seen.batch_step_s - seen.step_s) / (PROBE_BATCH - 1) - k.b * context)
        a = max(0.0, seen.step_s - c - k.b * context)  # what `found` has for it may be of another quarter of an hour
        kinds[name] = replace(kind, latency=replace(k, a=a, c=c))
        ways.append(seen.ttft_s - max(k.floor, k.p0 + k.p1 * PROBE_PROMPT + k.p2 * PROBE_PROMPT**2))
    return Machine(replace(found, kinds=kinds), max(0.0, median(ways)))


def between(one: dict[str, Alone], other: dict[str, Alone]) -> dict[str, Alone]:
    """The means of two probes."""
    means = {name: zip(astuple(a), astuple(other[name]), strict=True) for name, a in one.items()}
    return {name: Alone(*((x + y) / 2 for x, y in pairs)) for name, pairs in means.items()}


def uneven(machine: Machine, chosen: random.Random) -> Machine:
    """Every model's step a little longer or shorter, as probes of it differ."""
    kinds = {}
    for name, kind in machine.device.kinds.items():
        off = 1.0 + chosen.uniform(-UNEVEN, UNEVEN)
        latency = replace(kind.latency, a=kind.latency.a * off, c=kind.latency.c * off)
        kinds[name] = replace(kind, latency=latency)
    return replace(machine, device=replace(machine.device, kinds=kinds))
