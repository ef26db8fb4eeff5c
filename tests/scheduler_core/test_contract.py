"""The line between facts and thoughts: of the core's rows a policy sets two slots; its own columns are elsewhere."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from small_world import interpreted

from aegaeon_scheduler.core import policies, state

pytestmark = interpreted
SOURCES = sorted(path for path in Path(policies.__file__).parent.rglob("*.py"))
ROWS = (state.Model, state.Sequence, state.Instance, state.Issued, state.Weights)
FACTS = {name for row in ROWS for name in getattr(row, "__slots__", ())} - {"batch", "row"}  # compiled rows have none
# Columns of the policies' own rows that have these names.
OWN = {"inst", "members", "model", "served", "ended", "since", "output_tokens"}


def stores(source: str) -> set[str]:
    """Attributes of other objects that a module sets."""
    targets = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    set_ = (node for node in targets if isinstance(node.ctx, ast.Store | ast.Del))
    return {node.attr for node in set_ if not (isinstance(node.value, ast.Name) and node.value.id == "self")}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_policy_sets_no_fact_of_the_core(path: Path) -> None:
    assert not stores(path.read_text("utf-8")) & FACTS - OWN


def test_the_check_sees_a_fact_that_is_set() -> None:
    assert stores("def f(seq):\n    seq.kv_tokens += 1\n    seq.batch = None") & FACTS == {"kv_tokens"}
