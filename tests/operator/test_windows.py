"""Degraded, attainment and Admitted are of the last ten minutes, whatever was counted before."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from operator_objects import gpu_pool, model_pool, observed

from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_operator.reconcile.cluster.facts import ModelFacts, SchedulerFacts
from aegaeon_operator.reconcile.cluster.report import reports
from aegaeon_operator.reconcile.cluster.windows import ENOUGH_TOKENS, WINDOW_S, Windows

LOOK_S, STEP_S = 5.0, 30.0
MONTH = 30 * 24 * 3600


class Pool:
    """One model; `minutes` of tokens pass, and `said` is what its ModelPool says then."""

    def __init__(self, tokens: int = 0) -> None:
        self.windows, self.now, self.incarnation = Windows(), 1000.0, "one"
        self.tokens = self.on_time = tokens
        self.counted = ModelFacts("cached")
        self.facts = self.look()

    def look(self) -> ModelFacts:
        if (self.tokens, self.on_time) != (self.counted.output_tokens, self.counted.tokens_on_time):
            # the link returns the same object while nothing changes
            counts = {"output_tokens": self.tokens, "tokens_on_time": self.on_time}
            self.counted = ModelFacts("cached", **counts, busy_s=self.tokens / 100)
        seen = self.windows.of(SchedulerFacts(self.incarnation, {"llama": self.counted}), self.now)
        self.facts = seen.models["llama"]
        return self.facts

    def minutes(self, count: float, per_s: int, on_time: float) -> Pool:
        for _ in range(int(count * 60 / LOOK_S)):
            self.now += LOOK_S
            self.tokens += int(per_s * LOOK_S)
            self.on_time += int(per_s * LOOK_S * on_time)
            self.look()
        return self

    def said(self, kind: str) -> tuple[str, str]:
        facts = SchedulerFacts("one", {"llama": self.facts})
        seen = observed(gpu_pool(), model_pool("red", "llama"), scheduler=facts)
        (status,) = (one.status for one in reports(seen, desired(seen), {}) if one.about.kind == "ModelPool")
        return next((one["status"], one["reason"]) for one in status["conditions"] if one["type"] == kind)

    @property
    def degraded(self) -> tuple[str, str]:
        return self.said("Degraded")


def test_a_bad_quarter_of_an_hour_after_a_good_month_is_seen() -> None:
    pool = Pool(tokens=1000 * MONTH)
    assert pool.minutes(15, per_s=1000, on_time=1.0).degraded == ("False", "ObjectiveMet")
    assert pool.minutes(3, per_s=1000, on_time=0.0).degraded == ("True", "ObjectiveMissed")


def test_a_good_quarter_of_an_hour_after_a_bad_month_is_seen() -> None:
    pool = Pool()
    pool.minutes(60, per_s=100, on_time=0.2)
    assert pool.degraded == ("True", "ObjectiveMissed")
    assert pool.minutes(11, per_s=100, on_time=1.0).degraded == ("False", "ObjectiveMet")


def test_ten_minutes_without_tokens_are_no_traffic() -> None:
    pool = Pool(tokens=1000 * MONTH)
    assert pool.degraded == ("False", "NoTraffic"), "what an operator, just started, has not seen itself"
    assert pool.minutes(5, per_s=100, on_time=0.0).degraded == ("True", "ObjectiveMissed")
    assert pool.minutes(11, per_s=0, on_time=0.0).degraded == ("False", "NoTraffic")


def test_a_few_late_tokens_are_no_verdict() -> None:
    """As of the first request after zero engines: it was held on purpose."""
    pool = Pool()
    pool.tokens += ENOUGH_TOKENS - 1
    pool.look()
    assert pool.degraded == ("False", "TooFewTokens")
    pool.tokens += 1
    pool.look()
    assert pool.degraded == ("True", "ObjectiveMissed")


def test_what_a_token_costs_is_remembered_without_traffic() -> None:
    pool = Pool()
    assert pool.said("Admitted") == ("Unknown", "NotMeasured")
    pool.minutes(2, per_s=100, on_time=1.0)
    assert pool.said("Admitted") == ("True", "Feasible")
    assert pool.minutes(60, per_s=0, on_time=1.0).said("Admitted") == ("True", "Feasible")


def test_the_counters_of_the_next_leader_begin_anew_and_the_window_goes_on() -> None:
    pool = Pool()
    pool.minutes(5, per_s=100, on_time=0.0)
    before = pool.facts.output_tokens
    pool.incarnation, pool.tokens, pool.on_time = "two", 0, 0
    pool.look()
    assert pool.facts.output_tokens == before
    assert pool.degraded == ("True", "ObjectiveMissed")
    pool.minutes(3, per_s=100, on_time=1.0)
    assert (pool.facts.output_tokens, pool.facts.tokens_on_time) == (before + 18_000, 18_000)


@given(st.lists(st.tuples(st.integers(1, 120), st.integers(0, 500)), min_size=1, max_size=60))
def test_the_window_has_what_came_in_it_and_nothing_else(looks: list[tuple[int, int]]) -> None:
    windows, now, total, came = Windows(), 0, 0, [(0, 0)]
    windows.of(facts(0), 0.0)
    for seconds, tokens in looks:
        now, total = now + seconds, total + tokens
        came.append((now, tokens))
        found = windows.of(facts(total), float(now)).models["llama"].output_tokens
        first = (now // STEP_S - WINDOW_S / STEP_S + 1) * STEP_S
        assert found == counted(came, first)


def facts(tokens: int) -> SchedulerFacts:
    return SchedulerFacts("one", {"llama": ModelFacts("cached", output_tokens=tokens)})


def counted(came: Iterable[tuple[int, int]], since: float) -> int:
    return sum(tokens for at, tokens in came if at >= since)
