"""A sweep whose runs are kept as they end: one that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path

Figures = dict[str, float]
Key = tuple[str, str, int]
"""that tells a run from others; the last is its seed"""


def run_all(keys: Sequence[Key], kept: Path | None, submit: Callable[[Key], Future[Figures]]) -> dict[Key, Figures]:
    """Figures of each run; those in `kept`, JSON lines, are taken from there, and finished ones are added."""
    measured: dict[Key, Figures] = {}
    if kept is not None and kept.exists():
        measured = {tuple(key): run for *key, run in map(json.loads, kept.read_text("utf-8").splitlines())}
    runs = {submit(key): key for key in keys if key not in measured}
    for future in as_completed(runs):
        key = runs[future]
        measured[key] = future.result()
        print(*key, {name: round(value, 3) for name, value in measured[key].items()}, flush=True)
        if kept is not None:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps([*key, measured[key]]) + "\n")
    return {key: measured[key] for key in keys}
