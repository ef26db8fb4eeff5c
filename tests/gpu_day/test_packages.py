"""Pieces hold every wheel once and none is too large; a package is carried unless the machine's version suits."""

from __future__ import annotations

from pathlib import Path

from benchmarks.gpu_day.packages import NEEDED, Wheel, deal, lacking, read_names
from hypothesis import given
from hypothesis import strategies as st

PIECE = 48


@given(st.lists(st.integers(1, PIECE), max_size=40))
def test_pieces_hold_every_wheel_once_within_their_size_and_few_are_needed(sizes: list[int]) -> None:
    wheels = [Wheel(Path(f"wheel-{number}.whl"), size) for number, size in enumerate(sizes)]
    pieces = deal(wheels, PIECE)
    assert sorted(w.file for piece in pieces for w in piece) == sorted(w.file for w in wheels)
    assert all(0 < sum(w.nbytes for w in piece) <= PIECE for piece in pieces)
    # No two are half empty: the later one's wheels would have gone into the earlier one.
    assert sum(2 * sum(w.nbytes for w in piece) <= PIECE for piece in pieces) <= 1


def test_a_wheel_that_is_larger_than_a_piece_is_one_of_its_own() -> None:
    large, small = Wheel(Path("large.whl"), PIECE + 1), Wheel(Path("small.whl"), 1)
    assert deal([small, large], PIECE) == [[large], [small]]


def test_lines_of_a_lock_are_read_for_the_machines_python() -> None:
    text = """# what a machine has
Some_Package==1.2 \\
    --hash=sha256:00
networkx==3.6.1 ; python_full_version < '3.12' \\
networkx==3.7 ; python_full_version >= '3.12' \\
colorama==0.4.6 ; sys_platform == 'win32' \\
plain
"""
    assert read_names(text) == {"some-package": "1.2", "networkx": "3.7", "plain": None}


def test_what_suits_is_not_carried_and_what_it_requires_neither() -> None:
    everything = lacking(NEEDED, {})
    assert {"grpcio", "torch", "pydantic", "pydantic-core"} <= set(everything)
    machine = {"torch": "2.11.0", "transformers": "5.17.0", "tokenizers": "0.23.2", "numpy": "2.5.2"}
    left = set(lacking(NEEDED, machine))
    assert not left & set(machine)
    assert {"grpcio", "pydantic"} <= left < set(everything)


def test_a_version_that_is_too_old_or_not_known_is_carried() -> None:
    assert "torch" in lacking(("torch",), {"torch": "2.5.0"})
    assert "torch" in lacking(("torch",), {"torch": None})
    assert lacking(("torch",), {"torch": "2.11.0"}) == []
