"""Every reason that a condition can have is explained to people."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
REASON = re.compile(
    r"(?:\b(?:yes|no|unknown)\(\s*[^,()]+,\s*|\b(?:Refusal|Trouble)\(\s*|\bProblem\(claim, "
    r'|\b(?:FETCHING|SOME|SOME_START|SOME_HELD|STARTING|SUSPENDED) = |"Evicted" if \w+ else )"([A-Za-z]+)"'
)
OPERATOR = ROOT / "operator/aegaeon_operator"
CODE = [*sorted((OPERATOR / "reconcile/cluster").glob("*.py")), OPERATOR / "spec/tenancy.py"]


def reasons() -> set[str]:
    """As the code gives them."""
    return {reason for file in CODE for reason in REASON.findall(file.read_text())}


def test_every_reason_is_on_the_page() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    found = reasons()
    assert {"NameConflict", "Overcommitted", "NamespaceNotAllowed"} <= found
    assert not {reason for reason in found if f"`{reason}`" not in page}
