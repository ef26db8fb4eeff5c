"""Every input in the tree, once: the seeds, what fuzzing has found before, and random ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("atheris", reason="needs atheris, which has no wheel for this Python")

from fuzz.table import TARGETS

UNCHOSEN = 50


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_returns_or_raises_its_own_error(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    inputs = target.inputs()
    assert inputs, f"{target.corpus} has no seed"
    dice = random.Random(name)
    feed = target.open(tmp_path)
    for data in inputs + [b"\1" + dice.randbytes(dice.randrange(400)) for _ in range(UNCHOSEN)]:
        feed(data)
