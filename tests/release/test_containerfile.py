"""What images are made of is named by content: a tag may stand for another image tomorrow."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "Containerfile").read_text()


def test_every_base_is_a_stage_or_named_by_digest() -> None:
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", TEXT, re.MULTILINE))
    stages = re.findall(r"^FROM \S+ AS (\S+)$", TEXT, re.MULTILINE)
    bases = [defaults.get(base.strip("${}"), base) for base in re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)]
    assert [base for base in bases if base not in stages and not re.search(r"@sha256:[0-9a-f]{64}$", base)] == []
    assert len({base for base in bases if "@" in base}) == 2


def test_every_package_has_a_hash() -> None:
    installs = re.findall(r"pip install .*", TEXT)
    assert installs
    assert all("--require-hashes" in install for install in installs)
