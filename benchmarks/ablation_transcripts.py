"""Transcripts of tests/scheduler_core that change when policy slack lacks a rule or setting. Needs PYTHONPATH=tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.ablation_rules import VARIANTS, instead
from scheduler_core import test_transcripts as recorded
from scheduler_core.transcript import Transcript

from aegaeon_scheduler.core.config import PolicySettings, SlackSettings, policy_settings


def changed(variant: str) -> list[str]:
    """Names of the scenarios whose transcripts differ. Run it with the interpreted core."""
    of = VARIANTS[variant]

    def named(name: str) -> PolicySettings:
        made = policy_settings(name)
        return replace(made, **of.settings) if isinstance(made, SlackSettings) else made

    def changed_fields(**fields: Any) -> SlackSettings:
        return SlackSettings(**{**fields, **of.settings})

    patches = of.patches() if of.patches is not None else []
    with instead([*patches, (recorded, "policy_settings", named), (recorded, "SlackSettings", changed_fields)]):
        return [name for name in recorded.SCENARIOS if _text(name) != _recorded(name)]


def _text(name: str) -> str:
    title, scenario = recorded.SCENARIOS[name]
    transcript = Transcript(title)
    scenario(transcript)
    return transcript.text


def _recorded(name: str) -> str:
    return (recorded.FOLDER / f"{name}.txt").read_text("utf-8")
