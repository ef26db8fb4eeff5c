"""A machine as the simulator sees it, from what models take through all processes of a stack."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from statistics import median

import numpy as np
from benchmarks.truth_stack import PROBE_BATCH, PROBE_PROMPT, PROBE_TOKENS, Alone

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants
from aegaeon_scheduler.core.domain import CommandId, InstanceId, ModelName
from aegaeon_simulator.devices import Device

Event = tuple[float, ev.Event, list[cmd.Command]]

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


def as_run(machine: Machine, log: Iterable[Event]) -> Machine:
    """With steps and prompts as long as the engines reported them in a run, whose event log this is: a machine is no
    steadier than its probes, and a step of 7 % more is 7 points of tokens where four engines are full.

    What came of these steps, which tokens were late and which models took turns, is not looked at."""
    reports = _reports(log)
    kinds = {
        name: replace(kind, latency=_refitted(kind.latency, reports[ModelName(name)]))
        for name, kind in machine.device.kinds.items()
    }
    return replace(machine, device=replace(machine.device, kinds=kinds))


def _reports(log: Iterable[Event]) -> dict[ModelName, list[ev.TurnProgress]]:
    turns: dict[tuple[InstanceId, CommandId], ModelName] = {}
    found: dict[ModelName, list[ev.TurnProgress]] = defaultdict(list)
    for _, event, commands in log:
        if isinstance(event, ev.TurnProgress) and (event.instance, event.turn) in turns and not event.first_s:
            found[turns[event.instance, event.turn]].append(event)
        for send in commands:
            if isinstance(send, cmd.Send) and isinstance(send.body, cmd.Turn):
                turns[send.instance, send.id] = send.body.model
    return found


def _refitted(k: LatencyConstants, reports: list[ev.TurnProgress]) -> LatencyConstants:
    """Least squares over steps for `a` and `c`, which keep the sum of all seconds; prompts are scaled as a whole."""
    steps = [r for r in reports if r.steps]
    if len({r.batch for r in steps}) > 1:
        seconds = [r.decode_s / r.steps - k.b * r.context_tokens for r in steps]
        c, a = np.polyfit([r.batch for r in steps], seconds, 1, w=[r.steps**0.5 for r in steps])
        k = replace(k, a=max(0.0, float(a)), c=max(0.0, float(c)))
    prompts = [r for r in reports if r.prefill_tokens]
    expected = sum(max(k.floor, k.p0 + k.p1 * r.prefill_tokens + k.p2 * r.prefill_tokens**2) for r in prompts)
    off = sum(r.prefill_s for r in prompts) / expected if prompts else 1.0
    return replace(k, floor=off * k.floor, p0=off * k.p0, p1=off * k.p1, p2=off * k.p2)


def uneven(machine: Machine, chosen: random.Random) -> Machine:
    """Every model's step a little longer or shorter, as probes of it differ."""
    kinds = {}
    for name, kind in machine.device.kinds.items():
        off = 1.0 + chosen.uniform(-UNEVEN, UNEVEN)
        latency = replace(kind.latency, a=kind.latency.a * off, c=kind.latency.c * off)
        kinds[name] = replace(kind, latency=latency)
    return replace(machine, device=replace(machine.device, kinds=kinds))
