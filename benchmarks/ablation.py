"""What each rule of policy slack brings: tokens on time without it, at loads where 90 % are met with it.

Run: python -m benchmarks.ablation [POINT ...] [--seed 1] [--seconds 120] [--only VARIANT]. A point is one of
benchmarks.goodput (harsher costs are quicker to run), or PANEL:LOAD of a figure, such as 17-a10-normal:8.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from benchmarks.goodput import LENGTHS, POINTS, PROCESSES, run_of
from benchmarks.report import Row, read_settings, report

from aegaeon_scheduler.core.config import SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.policies.slack.engines import View
from aegaeon_scheduler.core.policies.slack.group import Group, Load, Order
from aegaeon_scheduler.core.policies.slack.policy import SlackPolicy
from aegaeon_scheduler.core.state import Instance, Sequence
from aegaeon_simulator.figures.catalog import panels
from aegaeon_simulator.figures.points import run_of as figure_run
from aegaeon_simulator.parallel import processes
from aegaeon_simulator.pool import production
from aegaeon_simulator.run import Run, simulate

_FULL = "all rules"
_NEVER = 1e9

KNOBS: dict[str, dict[str, float]] = {
    _FULL: {},
    "no preemption": {"min_stay_s": _NEVER},
    "preemptions are not priced": {"away_margin": 0.0, "min_stay_s": 0.0},
    "company does not count": {"lone_share": 0.0},
    "late ones keep first priority": {"late_slack_s": -_NEVER},
    "no rebalancing": {"busy_util": _NEVER},
    "no second group when hot": {"hot_util": _NEVER, "swamped_share": _NEVER},
    "prompts make no group hot": {"swamped_share": _NEVER},
    "no limit of time when placing": {"full_util": _NEVER},
    "quantum of 32 steps": {"quantum_steps": 32},
    "passes at every event": {"pass_gap_s": 0.0},
    "a stay of five seconds": {"min_stay_s": 5.0},
    "no groups in halves": {"split_share": _NEVER},
    "no room kept free": {"headroom": 0.0},
    "no urgency": {"urgent_share": 0.0},
}
FIRST_COME, STALL, NO_IDLE = "first come, first served", "loads stall the engine", "idle weights are not used"
COUNTED = tuple(f"groups at most: {count}" for count in (1, 2, 3))
VARIANTS = (*KNOBS, FIRST_COME, STALL, NO_IDLE, *COUNTED)
Patches = list[tuple[Any, str, object]]  # owner, its attribute, what stands there for a while


@contextmanager
def instead(owner: Any, name: str, value: object) -> Iterator[None]:
    """Another function in a class or module for a while."""
    before = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _first_come(group: Group, now: float, settings: SlackSettings) -> Order:
    oldest = min((seq.arrival for seq in group.members.values()), default=now)
    return Order(oldest, oldest)


def _never_idle(policy: SlackPolicy, group: Group, seq: Sequence, now: float) -> None:
    return None


def _at_most(count: int) -> Patches:
    """A policy with so many groups on an engine."""
    over, idle = View.over, SlackPolicy._idle_weights

    def counted_over(view: View, load: Load) -> float:
        return over(view, load) if len(view.loads) < count else max(1.0, over(view, load))

    def counted_idle(policy: SlackPolicy, group: Group, seq: Sequence, now: float) -> Instance | None:
        inst = idle(policy, group, seq, now)
        return inst if inst is not None and len(policy._table.at(inst)) < count else None

    return [(View, "over", counted_over), (SlackPolicy, "_idle_weights", counted_idle)]


def _patches(variant: str) -> Patches:
    """What a variant changes that no knob does."""
    if variant == FIRST_COME:
        return [(Group, "order", _first_come)]
    if variant == NO_IDLE:
        return [(SlackPolicy, "_idle_weights", _never_idle)]
    return _at_most(int(variant[-1])) if variant in COUNTED else []


def _stalling(run: Run) -> Run:
    rate = max(k.latency.load_bytes_per_s for k in run.device.kinds.values())
    return replace(run, device=replace(run.device, load_stall_bytes_per_s=rate))


def tokens(variant: str, name: str, seed: int, seconds: float) -> float:
    """Share of tokens on time of one variant."""
    run = _run(name, seed, seconds)
    config = production._config

    def changed(*args: Any) -> SchedulerConfig:
        given = config(*args)
        return replace(given, policy=replace(given.policy, **KNOBS.get(variant, {})))  # type: ignore[arg-type]  # floats

    with ExitStack() as stack:
        for owner, attribute, value in [(production, "_config", changed), *_patches(variant)]:
            stack.enter_context(instead(owner, attribute, value))
        return _token(_stalling(run) if variant == STALL else run)


def _run(name: str, seed: int, seconds: float) -> Run:
    panel, _, load = name.partition(":")
    if not load:
        return run_of(POINTS[name], seed, seconds)
    found = next(p for p in panels(seconds) if p.name == panel)
    return figure_run(found.point("slack", float(load), seed), LENGTHS.parent)


def _token(run: Run) -> float:
    return simulate(run).attainment(run.settings.slo).token


def main() -> int:
    """Every variant at every point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", nargs="*", default=["H0.1", "Hx0.3", "H0.5"], metavar="POINT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--only", action="append", choices=VARIANTS, help="these variants; may be repeated")
    chosen = read_settings(parser)
    found = []
    with processes(PROCESSES) as pool:
        runs = [
            (v, n, pool.submit(tokens, v, n, chosen.seed, chosen.seconds))
            for n in chosen.points
            for v in chosen.only or VARIANTS
        ]
        for variant, name, future in runs:
            what = f"{name}, {POINTS[name].models} models" if name in POINTS else name
            figure = f"{what}, {chosen.seconds:g} s: {variant}"
            found.append(Row(figure, future.result(), "share"))
            print(f"{figure}: {100 * future.result():.1f}", flush=True)
    return 0 if report("ablation", found, chosen.short) else 1


if __name__ == "__main__":
    sys.exit(main())
