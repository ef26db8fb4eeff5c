"""Seeds that nothing was tuned on: drawn from the hash of the commit that is measured."""

from __future__ import annotations

import subprocess

from benchmarks.conditions import ROOT

_DIGITS = 4  # of the hash, for each seed


def head() -> str:
    """Hash of the commit that is checked out."""
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()


def seeds(count: int, commit: str) -> list[int]:
    """So many of a commit's hash: each its next four hexadecimal digits."""
    if count * _DIGITS > len(commit):
        raise ValueError(f"a hash of {len(commit)} digits has no {count} seeds of {_DIGITS}")
    return [int(commit[_DIGITS * i : _DIGITS * (i + 1)], 16) for i in range(count)]
