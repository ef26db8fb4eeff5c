"""Best settings of baselines, by panel, as benchmarks.tuning has found and recorded them: data/tuned.json."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from aegaeon_scheduler.core.config import PaperSettings, PrismSettings
from aegaeon_simulator.settings import Settings, Split

FILE = Path(__file__).parent / "data" / "tuned.json"
Chosen = dict[str, float]
"""settings of a baseline by name: of its policy, `prefill` (GPUs with that role), or `awake_s`"""


def best(policy: str, panel: str, settings: Settings) -> Settings:
    """Settings of a baseline on a panel; a policy without a record keeps its defaults."""
    return applied(settings, _records().get(panel, {}).get(policy, {}))


def applied(settings: Settings, chosen: Chosen) -> Settings:
    """Settings with those that were chosen."""
    rest: dict[str, Any] = {name: value for name, value in chosen.items() if name not in ("prefill", "awake_s")}
    gpus, prefill = settings.split.total, int(chosen.get("prefill", 0))
    split = Split(prefill=prefill, decode=gpus - prefill) if prefill else Split(unified=gpus)
    settings = replace(settings, split=split, awake_s=chosen.get("awake_s", 0.0))
    if settings.policy == "paper":
        return replace(settings, tuned=replace(PaperSettings(), **rest))
    if settings.policy == "prism":
        return replace(settings, tuned=replace(PrismSettings(), **rest))
    return settings


@cache
def _records() -> dict[str, dict[str, Chosen]]:
    if not FILE.exists():
        return {}
    lines = json.loads(FILE.read_text("utf-8"))
    records: dict[str, dict[str, Chosen]] = {}
    for line in lines:
        if "chosen" in line:
            records.setdefault(line["panel"], {})[line["policy"]] = line["chosen"]
    return records
