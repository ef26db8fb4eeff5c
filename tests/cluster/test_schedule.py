"""A seed stands for one sequence of faults, in which every kind comes as often as its weight says."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from e2e.chaos.schedule import OVERLAPPING, PAUSE_S, Drawn, draw

WEIGHTS = {"kill": 5, "cut": 2, "upgrade": 1}
DECK = sum(WEIGHTS.values())


def test_a_seed_replays_the_sequence_whatever_the_order_of_kinds() -> None:
    again = dict(reversed(WEIGHTS.items()))
    assert list(islice(draw(7, WEIGHTS), 50)) == list(islice(draw(7, again), 50))
    assert list(islice(draw(7, WEIGHTS), 50)) != list(islice(draw(8, WEIGHTS), 50))


def test_every_deck_has_each_kind_as_often_as_its_weight_says_in_an_order_of_its_own() -> None:
    drawn = [one.kind for one in islice(draw(7, WEIGHTS), 10 * DECK)]
    decks = [drawn[at : at + DECK] for at in range(0, len(drawn), DECK)]
    assert all(Counter(deck) == WEIGHTS for deck in decks)
    assert len(set(map(tuple, decks))) > 5


def test_faults_are_numbered_and_draws_stay_within_their_bounds() -> None:
    drawn = list(islice(draw(7, WEIGHTS), 400))
    assert [one.number for one in drawn] == [*range(1, 401)]
    assert all(0 <= one.which < 1 and 0 <= one.how_long < 1 for one in drawn)
    assert all(PAUSE_S[0] <= one.pause_s <= PAUSE_S[1] for one in drawn)
    assert sum(one.overlaps for one in drawn) == pytest.approx(400 * OVERLAPPING, rel=0.3)


@pytest.mark.parametrize(("which", "chosen"), [(0.0, "a"), (0.34, "b"), (0.999, "c")])
def test_a_draw_chooses_among_those_that_are_there(which: float, chosen: str) -> None:
    drawn = Drawn(1, "kill", which, 0.5, 1.0, overlaps=False)
    assert drawn.choose("abc") == chosen
    assert drawn.between(4.0, 8.0) == 6.0
    with pytest.raises(IndexError):
        drawn.choose("")
