"""Transcripts of tests/scheduler_core that change when policy slack lacks a rule or setting. Needs PYTHONPATH=tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.ablation_rules import VARIANTS, instead
from scheduler_core import scene
from scheduler_core import test_transcripts as recorded

from aegaeon_scheduler.core.config import SlackSettings


def changed(variant: str, names: Iterable[str] = recorded.SCENARIOS) -> list[str]:
    """Names of those scenarios whose transcripts differ. Run it with the interpreted core."""
    of = VARIANTS[variant]

    def settings(**fields: Any) -> SlackSettings:
        return SlackSettings(**{**fields, **of.settings})

    patches = of.patches() if of.patches is not None else []
    with instead([*patches, (scene, "slack", settings)]):
        return [name for name in names if recorded.played(name)[0].text != recorded.recorded(name)]
