"""What clients of a campaign saw is judged: answers of their model, whole ones; failures, unless their gateway died."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from e2e.chaos import gateways as gateways_module
from e2e.chaos.gateways import Gateways
from e2e.chaos.report import causes, quantile
from e2e.chaos.verdict import Verdict
from e2e.chaos.view import View

from aegaeon_cli.demo.check import Check
from aegaeon_cli.demo.traffic import Chat, Exchange

ONE, OTHER = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


class Endpoints(View):
    """A Service that leads to two gateways, for ever."""

    def __init__(self) -> None: ...

    def endpoints(self, service: str) -> list[str]:
        return [ONE, OTHER]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock: its last entry."""
    clock = [0.0]
    monkeypatch.setattr(gateways_module.time, "monotonic", lambda: clock[-1])
    return clock


@pytest.fixture
def gateways(now: list[float]) -> Gateways:
    return Gateways(Endpoints(), "gateway")


@pytest.fixture
def verdict() -> Verdict:
    """Every model answers with its own name."""

    def check(exchanges: Sequence[Exchange], directories: Mapping[str, Path]) -> Check:
        wrong = tuple("differs" for one in exchanges if one.text != directories[one.chat.model].name)
        return Check(1, 1 - len(wrong), 1, 0, wrong)

    return Verdict(Path("/models"), check)


def exchange(sent: float, ended: float, text: str = "llama", tokens: int = 3, error: str = "") -> Exchange:
    finish = None if error else "length"
    made = Exchange(Chat("llama", "?", max_tokens=3), sent, text=text, tokens=[1] * tokens, finish_reason=finish)
    made.error, made.ended = error, ended
    return made


def test_gateways_are_used_in_turn(gateways: Gateways) -> None:
    assert [gateways.next() for _ in range(3)] == [ONE, OTHER, ONE]


@pytest.mark.parametrize(
    ("url", "sent", "ended", "harmed"),
    [
        (ONE, 1, 9, False),  # over before
        (ONE, 9, 11, True),  # under way
        (ONE, 15, 16, True),  # sent to a gateway that is not back
        (ONE, 20, 40, True),
        (ONE, 31, 40, False),  # sent when it was whole again
        (OTHER, 9, 40, False),
    ],
)
def test_a_failure_is_excused_while_its_gateway_is_harmed(
    verdict: Verdict, gateways: Gateways, now: list[float], url: str, sent: float, ended: float, harmed: bool
) -> None:
    now.append(10)
    gateways.harm([ONE])
    now.append(30)
    gateways.recovered()
    lines = verdict.look([(url, exchange(sent, ended, error="gone"))], gateways)
    assert (verdict.failures[0].harmed, len(lines)) == (harmed, 0 if harmed else 1)


def test_failures_are_counted_by_fault(verdict: Verdict, gateways: Gateways, now: list[float]) -> None:
    now.append(10)
    gateways.harm([ONE])
    failed = [(ONE, 5, 9), (ONE, 9, 11), (ONE, 11, 12), (OTHER, 11, 12)]
    verdict.look([(url, exchange(sent, ended, error="gone")) for url, sent, ended in failed], gateways)
    assert (verdict.failed_since(10), verdict.failed_since(0)) == ((1, 2), (2, 2))


def test_failures_of_a_gateway_that_is_not_ready_are_excused(
    verdict: Verdict, gateways: Gateways, now: list[float]
) -> None:
    now.append(10)
    gateways.harm([ONE])
    assert verdict.look([(ONE, exchange(11, 500, error="gone"))], gateways) == []


def test_answers_are_counted_once_and_only_when_they_are_over(verdict: Verdict, gateways: Gateways) -> None:
    over, under_way = exchange(1, 2), exchange(1, 0)
    for _ in range(2):
        assert verdict.look([(ONE, over), (ONE, under_way)], gateways) == []
    assert (verdict.requests, verdict.tokens) == (1, 3)


@pytest.mark.parametrize(("text", "tokens"), [("qwen3", 3), ("llama", 2)])
def test_an_answer_of_another_model_and_one_that_lacks_tokens_are_wrong(
    verdict: Verdict, gateways: Gateways, text: str, tokens: int
) -> None:
    assert len(verdict.look([(ONE, exchange(1, 2, text, tokens))], gateways)) == len(verdict.wrong) == 1


def test_while_a_name_changes_models_answers_of_either_are_right(verdict: Verdict, gateways: Gateways) -> None:
    change = verdict.may_be("llama", "qwen3", since=10)
    change.until = 20
    during = [(ONE, exchange(5, 11, "qwen3")), (ONE, exchange(19, 30, "qwen3")), (ONE, exchange(12, 13))]
    assert verdict.look(during, gateways) == []
    assert len(verdict.look([(ONE, exchange(21, 30, "qwen3")), (ONE, exchange(12, 13, "mistral"))], gateways)) == 2


def test_failures_are_counted_by_cause_whatever_their_numbers(verdict: Verdict, gateways: Gateways) -> None:
    errors = ["refused by 10.0.0.1:8000", "refused by 10.0.0.7:8000", "broken off"]
    verdict.look([(ONE, exchange(1, 2, error=error)) for error in errors], gateways)
    assert causes(verdict.failures) == [("refused by N", 2), ("broken off", 1)]


def test_quantiles_are_those_of_the_nearest_rank() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [quantile(values, share) for share in (0.5, 0.99, 1.0)] == [51.0, 100.0, 100.0]
    assert quantile([], 0.5) == 0.0
