"""The traces with real shapes, their lengths as recorded, beside the same cut to 4,000 and 2,000 tokens; virtual time.

Run: python -m benchmarks.uncapped [TRACE ...] [--seconds 60]. Tokens on time of policy slack and of the best of the
baselines at the highest load of docs/evaluation.md, with costs of `h800-policy`; traces have no seed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from benchmarks.goodput import LENGTHS
from benchmarks.report import Row, read_settings, report

from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.figures.catalog import OURS, Panel, panels
from aegaeon_simulator.figures.points import Trace, run_of
from aegaeon_simulator.run import simulate

BASELINES = ("paper", "serverlessllm", "serverlessllm-plus", "serverlessllm-fair", "muxserve-memory")
LOADS = {"mooncake": (4.0, 8.0), "azure": (4.0, 16.0)}
"""where the highest load of the figures exceeds what the engines can do at recorded lengths"""
BEHIND = 0.005


def traces() -> dict[str, Panel]:
    """By name."""
    return {
        p.name.removeprefix("shape-"): p for p in panels(300.0) if isinstance(p.work, Trace) and p.figure == "shapes"
    }


def on_time(panel: Panel, policy: str, load: float, seconds: float, cut: bool) -> float:
    """Share of tokens."""
    work = replace(panel.work, window_s=seconds)
    assert isinstance(work, Trace)
    if not cut:
        work = replace(work, most_input=0, most_output=0)
    run = run_of(replace(panel, work=work).point(policy, load, 0), LENGTHS.parent)
    slo = run.settings.slo
    return attainment((r.times, slo, r.length) for r in simulate(run).requests).token


def rows(name: str, panel: Panel, seconds: float) -> list[Row]:
    """At each load: slack with lengths as recorded beside the best baseline, and with lengths cut."""
    found = []
    for load in LOADS.get(name, panel.loads[-1:]):
        best = {policy: on_time(panel, policy, load, seconds, cut=False) for policy in BASELINES}
        first = max(best, key=lambda policy: best[policy])
        print(name, load, {policy: round(share, 4) for policy, share in best.items()}, flush=True)
        what = f"{name} x{load:g}, {panel.roles.total} GPUs"
        ours = on_time(panel, OURS, load, seconds, cut=False)
        found += [
            Row(f"{what}: tokens on time, best baseline {first}", ours, "share", best[first] - BEHIND),
            Row(f"{what}, cut: tokens on time", on_time(panel, OURS, load, seconds, cut=True), "share"),
        ]
        print(*(f"{row.figure}: {row.value:.4f}" for row in found[-2:]), sep="\n", flush=True)
    return found


def main() -> int:
    """Print and keep every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="*", choices=[[], *traces()], metavar="TRACE")
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = read_settings(parser)
    known = traces()
    figures = [row for name in chosen.traces or known for row in rows(name, known[name], chosen.seconds)]
    return 0 if report("uncapped", figures, chosen.short) else 1


if __name__ == "__main__":
    sys.exit(main())
