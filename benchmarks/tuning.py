"""The best settings of the baselines on each panel, by tokens on time of a seed of which no figure is reported.

`paper`: Q_MAX and the GPUs that prefill (or no roles). `vllm-sleep`: how long a model stays awake. `prism`: how much KV
pressure has to differ for a move. The others have no settings.
Run: python -m benchmarks.tuning [PANEL ...] [--seed 7]; writes benchmarks/data/tuned.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import as_completed
from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.conditions import conditions
from benchmarks.goodput import PROCESSES
from benchmarks.panels import PANELS, measured, run_of
from benchmarks.report import read_settings
from benchmarks.tuned import FILE, Chosen, applied

from aegaeon_simulator.parallel import processes

Q_MAX_S = (0.25, 0.5, 1.0, 4.0)
PREFILL = (0, 1)  # GPUs of four; scaled
AWAKE_S = (0.5, 2.0, 4.0, 8.0)
THRESHOLDS = (0.05, 0.15, 0.35)


def choices(policy: str, gpus: int) -> Iterator[Chosen]:
    """All settings that are tried."""
    if policy == "paper":
        splits = sorted({round(n * gpus / 4) for n in PREFILL if gpus > 1} | {0})
        yield from ({"q_max_s": q, "prefill": p} for q, p in product(Q_MAX_S, splits))
    elif policy == "vllm-sleep":
        yield from ({"awake_s": s} for s in AWAKE_S)
    elif policy == "prism":
        yield from ({"threshold": threshold} for threshold in THRESHOLDS)


def attained(panel: str, policy: str, chosen: Chosen, seed: int) -> float:
    """Tokens on time of all requests with these settings."""
    load = PANELS[panel].load(seed)
    run = run_of(load, policy, panel)
    return measured(load, replace(run, settings=applied(run.settings, chosen)))["all"]


def main() -> int:
    """Sweeps every baseline that has settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("panels", nargs="*", default=list(PANELS), metavar="PANEL")
    parser.add_argument("--policies", default="paper,prism,vllm-sleep")
    parser.add_argument("--seed", type=int, default=7)
    options = read_settings(parser)
    policies = options.policies.split(",")
    with processes(PROCESSES) as pool:
        for panel in options.panels:
            gpus = PANELS[panel].load(options.seed).run.settings.split.total
            runs = {
                pool.submit(attained, panel, policy, chosen, options.seed): (policy, chosen)
                for policy in PANELS[panel].baselines
                if policy in policies
                for chosen in choices(policy, gpus)
            }
            swept: dict[str, list[dict[str, object]]] = {}
            for future in as_completed(runs):
                policy, chosen = runs[future]
                swept.setdefault(policy, []).append({**chosen, "tokens on time": future.result()})
            for policy, tried in sorted(swept.items()):
                line = record(panel, policy, tried, options.seed)
                print(panel, policy, line["chosen"], flush=True)
    return 0


def record(panel: str, policy: str, tried: list[dict[str, object]], seed: int) -> dict[str, object]:
    """The line of a baseline with the best of all settings that were tried, earlier ones included; it is written."""
    lines: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else []
    before = [line for line in lines if (line["panel"], line["policy"]) == (panel, policy)]
    tried = [*tried, *(trial for line in before for trial in line["tried"] if trial not in tried)]
    tried.sort(key=lambda trial: (-float(str(trial["tokens on time"])), str(trial)))
    chosen = {name: value for name, value in tried[0].items() if name != "tokens on time"}
    made: dict[str, object] = {
        "panel": panel,
        "policy": policy,
        "seed": seed,
        "chosen": chosen,
        "tried": tried,
        **conditions("panels"),
    }
    FILE.write_text(json.dumps([*(line for line in lines if line not in before), made], indent=1) + "\n", "utf-8")
    return made


if __name__ == "__main__":
    sys.exit(main())
