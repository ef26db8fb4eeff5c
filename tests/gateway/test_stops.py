"""Stop strings: the cut does not depend on how the text comes, and nothing of a stop string is ever shown."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from aegaeon_gateway.text.stops import StopScanner

TEXT = st.text(alphabet="abc", max_size=24)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=4)


def cut_at_once(text: str, stops: list[str]) -> tuple[str, bool]:
    """Character by character: where a stop string is complete for the first time, the longest that ends there."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(text=TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 24)))
@settings(max_examples=500, deadline=None)
def test_any_pieces_are_cut_at_the_stop_that_is_complete_first(text: str, stops: list[str], cuts: list[int]) -> None:
    expected, matched = cut_at_once(text, stops)
    scanner = StopScanner(stops)
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    shown = ""
    for start, end in pairwise(edges):
        shown += scanner.feed(text[start:end])
        assert expected.startswith(shown)
    assert (scanner.matched is not None) == matched
    assert shown + scanner.flush() == expected


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    scanner = StopScanner(["###", "\nUser:"])
    assert scanner.feed("hello\n") == "hello"
    assert scanner.feed("You") == "\nYou"
    assert scanner.feed(" ##") == " "
    assert scanner.flush() == "##"
