"""The figures of a campaign beside their bars; what each kind of fault cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.report import Row

from e2e.chaos.campaign import Campaign, Struck
from e2e.chaos.faults import CUT, MAINTAINED
from e2e.chaos.verdict import Failure

FAULTS, MINUTES = 200, 60
ANSWER_S = 15.0  # from a node's cut to the first new answer, with a standby
CONNECT_S = 20.0  # and until no request is sent to a gateway there
UNTRUE_S = 10.0  # in which a pool may say Ready and answer nothing


def rows(campaign: Campaign) -> list[Row]:
    verdict = campaign.world.verdict
    whole_hour = campaign.seconds >= 60 * MINUTES
    excused = [one for one in verdict.failures if one.harmed]
    return [
        Row("minutes", campaign.seconds / 60, "min"),
        Row("seed", campaign.seed, ""),
        Row("faults", len(campaign.struck), "faults", FAULTS if whole_hour else None),
        Row("kinds of faults", len({one.kind for one in campaign.struck}), "kinds"),
        Row("requests", verdict.requests, "requests"),
        Row("tokens", verdict.tokens, "tokens"),
        Row("outputs that differ or lose tokens", len(verdict.wrong), "outputs", 0, "<="),
        Row("failed, and their gateway was not killed", len(verdict.failures) - len(excused), "requests", 0, "<="),
        Row("faults that the pool did not recover from", int(bool(campaign.stuck)), "faults", 0, "<="),
        Row("failed with their gateway, killed or cut off", len(excused), "requests"),
        *(Row(f"  of which: {cause}", count, "requests") for cause, count in causes(excused)),
        Row("Ready=True without an answer, longest", campaign.world.untrue_s(), "s", UNTRUE_S, "<="),
        *_cuts(campaign),
        *_recoveries(campaign.struck),
    ]


def _cuts(campaign: Campaign) -> Iterator[Row]:
    for group in (CUT, MAINTAINED):
        first = [strike.first_answer_s for strike in campaign.struck if strike.group == group]
        if answered := [seconds for seconds in first if seconds is not None]:
            yield Row(f"{group}: first new answer, at most", max(answered), "s", ANSWER_S, "<=")
    if late := campaign.world.late_connects:
        yield Row(f"{MAINTAINED}: last request sent to the cut node", max(late), "s", CONNECT_S, "<=")


def causes(failures: Sequence[Failure]) -> list[tuple[str, int]]:
    """By the client's error, without numbers, addresses and names that differ from request to request."""
    errors = (re.sub(r"[\w.:-]*\d[\w.:-]*", "N", one.exchange.error.partition("\n")[0])[:60] for one in failures)
    return Counter(errors).most_common()


def by_kind(campaign: Campaign) -> Iterator[str]:
    """Lines of a table: every kind with how often it came, and the seconds of recovery and to a first new answer."""
    yield f"{'kind':<26} {'n':>4} {'whole: p50':>11} {'p99':>7} {'max':>7} {'answers: max':>13}"
    for kind in sorted({one.kind for one in campaign.struck}):
        of_kind = [one for one in campaign.struck if one.kind == kind]
        seconds, first = _recovered(of_kind), [one.first_answer_s or 0.0 for one in of_kind]
        figures = f"{quantile(seconds, 0.5):11.1f} {quantile(seconds, 0.99):7.1f} {quantile(seconds, 1):7.1f}"
        yield f"{kind:<26} {len(of_kind):>4} {figures} {max(first):13.1f}"


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _recoveries(struck: Sequence[Struck]) -> Iterator[Row]:
    """Of each group, then of all."""
    for group in (*sorted({one.group for one in struck}), ""):
        of_group = [one for one in struck if group in ("", one.group)]
        name = group or "all faults"
        yield Row(f"{name}: faults", len(of_group), "faults")
        for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            yield Row(f"{name}: recovery, {label}", quantile(_recovered(of_group), share), "s")


def _recovered(struck: Sequence[Struck]) -> list[float]:
    return [one.recovery_s for one in struck if one.recovery_s is not None]
