from pathlib import Path

import pytest

from prose.check import entries
from prose.english import compared, findings, lowered, read, write

TERMS = frozenset(entries(Path(__file__).with_name("terms.txt")))


@pytest.mark.parametrize(
    ("source", "rule", "text"),
    [
        ("one = 1", "name", "one"),
        ("for found, _ in pods: pass", "name", "found"),
        ("names = [whole for whole in pods]", "name", "whole"),
        ("def save(given): pass", "name", "given"),
        ("save = lambda asked: None", "name", "asked"),
        ("async def heard(): pass", "name", "heard"),
        ("class Pod:\n    mine: int", "name", "mine"),
        ("pod.wanted = 1", "name", "wanted"),
        ("try: pass\nexcept OSError as said: pass", "name", "said"),
        ("match pods:\n    case [first, *others]: pass", "name", "others"),
        ("match pods:\n    case {'a': there}: pass", "name", "there"),
        ("import pods as here", "name", "here"),
        ('"""What a pod asks for."""', "docstring", "What"),
        ('def ready():\n    """Whether it is ready."""', "docstring", "Whether"),
        ('class Pod:\n    """\n    Those, and others."""', "docstring", "Those"),
    ],
)
def test_a_name_or_first_word_that_says_nothing_is_reported_with_its_line(source: str, rule: str, text: str) -> None:
    (finding,) = findings("tests/pod.py", source, TERMS)
    assert (finding.rule, finding.text) == (rule, text)
    assert finding.line == source[: source.index(text)].count("\n") + 1 or rule == "docstring"


def test_names_of_things_and_uses_of_others_names_pass() -> None:
    source = '"""The pods of a pool."""\npod = found.one(others, whole=1)\nname = "one"\n'
    assert list(findings("tests/half_closed.py", source, TERMS)) == []


def test_a_module_of_the_product_is_named_by_terms() -> None:
    path = "operator/aegaeon_gateway/http/half_closed.py"
    assert [finding.text for finding in findings(path, "", TERMS)] == ["half", "closed"]
    assert list(findings("operator/aegaeon_gateway/http/__init__.py", "", TERMS)) == []
    assert list(findings("proto/aegaeon_proto/frame_server.py", "", TERMS)) == []


def test_a_ratchet_only_falls(tmp_path: Path) -> None:
    write(tmp_path / "ratchet.txt", {"operator/a": (3, 2, 0), "operator/gone": (1, 0, 0)})
    limits = read(tmp_path / "ratchet.txt")
    present = {"operator/a": (2, 4, 0), "operator/new": (0, 0, 1)}

    lines = list(compared(limits, present))

    assert [line.split("s, ")[0] for line in lines] == [
        "operator/a: 2 name",
        "operator/a: 4 docstring",
        "operator/gone: 0 name",
        "operator/new: 1 module",
    ]
    assert ["--lower" in line for line in lines] == [True, False, True, False]
    assert lowered(limits, present) == {"operator/a": (2, 2, 0), "operator/new": (0, 0, 0)}
