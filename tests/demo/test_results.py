"""Figures of the demo's table."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aegaeon_cli.demo.results import quantile, results, table
from aegaeon_cli.demo.traffic import Chat, Exchange
from aegaeon_proto.v1.gateway_pb2 import ModelTraffic, PoolStatus
from aegaeon_scheduler.core.domain import Slo

SLO = {"llama": Slo(1.0, 0.1)}


def _exchange(times: list[float]) -> Exchange:
    return Exchange(Chat("llama", "why?"), 0.0, tokens=[1] * len(times), times=times, finish_reason="stop")


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_quantile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values) + 1e-9


def test_a_request_without_an_answer_is_late_in_every_form() -> None:
    rows = results([_exchange([0.5, 0.6]), Exchange(Chat("llama", "?"), 0.0, error="lost")], PoolStatus(), SLO)
    assert (rows[0].attained.token, rows[0].attained.request, rows[0].attained.time) == (0.5, 0.5, 0.5)
    assert rows[0].requests == 2


def test_times_are_to_the_first_token_and_between_tokens() -> None:
    row = results([_exchange([0.5, 0.6, 0.9])], PoolStatus(), SLO)[0]
    assert row.ttft == (0.5, 0.5)
    assert [round(x, 6) for x in row.tbt] == [0.1, 0.3]


def test_mean_stall_is_per_switch() -> None:
    status = PoolStatus(models=[ModelTraffic(model="llama", switches=4, stall_s=0.2)])
    row = results([_exchange([0.5])], status, SLO)[0]
    assert (row.switches, row.mean_stall_s) == (4, 0.05)
    assert table([row]).row_count == 1
