"""The findings of `aegaeon doctor` and `kubectl aegaeon doctor`, a line each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """The mark of a finding. MISSING makes the exit status 1."""

    GOOD = ("ok", "green")
    NOTE = ("note", "yellow")
    MISSING = ("missing", "red")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: the subject, the result, and the remedy."""

    what: str
    text: str
    verdict: Verdict
    remedy: str = ""
