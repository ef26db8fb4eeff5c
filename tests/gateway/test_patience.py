"""How long lines of a batch wait for a model that has failed."""

from __future__ import annotations

from aegaeon_gateway.batches.patience import Patience


def test_a_model_that_was_repaired_and_fails_again_is_waited_for_again() -> None:
    now = 0.0
    patience = Patience(600, 120, lambda: now)
    said = []
    for at in (0, 100, 200, 330, 440, 550, 660, 770, 880, 930):  # nothing between 200 and 330
        now = at
        said.append((at, patience.is_over(b"m has failed")))
        assert not patience.is_over(f"another one {at}".encode())
    assert [at for at, over in said if over] == [930]
