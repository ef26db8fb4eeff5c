"""Turn lengths of a round (Eq. 2-3 of the paper), with the guards that the text leaves open."""

from __future__ import annotations

from collections.abc import Sequence

_TINY = 1e-12


def quotas(
    step_s: Sequence[float], tbt_s: Sequence[float], switch_s: float, q_max_s: float, alpha_floor: float
) -> list[float]:
    """Seconds of each batch's turn: n_i = d_i / t_i; q_i = c / (n_i * (alpha - sum 1/n_k)).

    `step_s` are t_i, `tbt_s` d_i, `switch_s` is c, the switching seconds of a round. c <= 0 gives zeros (all resident:
    the caller chooses), a single batch q_max_s.
    """
    if len(step_s) == 1:
        return [q_max_s]
    if switch_s <= 0.0:
        return [0.0] * len(step_s)
    n = [max(d, _TINY) / max(t, _TINY) for d, t in zip(tbt_s, step_s, strict=True)]
    share = sum(1.0 / x for x in n)
    alpha = max(switch_s / (min(n) * q_max_s) + share, alpha_floor)
    return [min(q_max_s, switch_s / (x * (alpha - share))) for x in n]


def steps_of(quota_s: float, step_s: float, limit: int) -> int:
    """Whole steps of a turn: at least one, at most `limit`."""
    return max(1, min(limit, int(quota_s / max(step_s, _TINY) + 1e-9)))
