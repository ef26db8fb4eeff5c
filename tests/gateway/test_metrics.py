"""Series of models and tenants that are gone do not add up over weeks."""

from __future__ import annotations

import pytest
from tests.gateway.conftest import HI, Pool

from aegaeon_gateway import metrics as metrics_module
from aegaeon_gateway.metrics import LINGER_S, Metrics, Times

TIMES = Times(2.0, 0.5, 0.5, 1.0)


def serve(metrics: Metrics, model: str, tenant: str) -> None:
    """One request, as all parts of the gateway count it."""
    of = metrics.of(model)
    with of.open_streams.track_inprogress():
        of.queue_wait.observe(0.1)
        of.token(gap_s=0.1, first=True, on_time=True)
        of.token(gap_s=0.1, first=False, on_time=True)
        of.finished("stop", TIMES, 10, 0, 2)
        of.used(tenant, 10, 2)
    of.ended("ok")


async def test_series_of_a_model_that_left_the_catalog_go_once_they_were_scraped() -> None:
    metrics = Metrics()
    serve(metrics, "base", "red")
    nothing = len((await metrics.render()).splitlines())
    for week in range(5):
        now, name = week * 7 * 86_400.0, f"tuned-{week}"
        serve(metrics, name, "red")
        metrics.follow({"base", name}, {"", "red"}, now)
        metrics.follow({"base"}, {"", "red"}, now + 1.0)
        metrics.follow({"base"}, {"", "red"}, now + 1.0 + LINGER_S)
        assert f'model="{name}"' in (await metrics.render()).decode(), "the last values are still to be scraped"
        metrics.follow({"base"}, {"", "red"}, now + 2.0 + LINGER_S)
    page = (await metrics.render()).decode()
    assert "tuned" not in page
    assert len(page.splitlines()) == nothing
    assert metrics.models == ["base"]


async def test_series_of_a_tenant_that_is_gone_go_and_those_of_others_stay() -> None:
    metrics = Metrics()
    for tenant in ("red", "blue", ""):
        serve(metrics, "base", tenant)
    metrics.follow({"base"}, {"", "red"}, 0.0)
    metrics.follow({"base"}, {"", "red"}, LINGER_S + 1.0)
    page = (await metrics.render()).decode()
    assert 'tenant="blue"' not in page
    assert 'aegaeon_gateway_used_tokens_total{kind="prompt",model="base",tenant="red"} 10.0' in page
    assert 'aegaeon_gateway_used_tokens_total{kind="prompt",model="base",tenant=""} 10.0' in page


async def test_a_model_that_comes_back_goes_on_counting() -> None:
    metrics = Metrics()
    serve(metrics, "base", "")
    metrics.follow((), {""}, 0.0)
    metrics.follow({"base"}, {""}, LINGER_S - 1.0)
    metrics.follow((), {""}, LINGER_S + 1.0)
    serve(metrics, "base", "")
    assert 'aegaeon_gateway_tokens_total{model="base"} 4.0' in (await metrics.render()).decode()


async def test_the_gateway_follows_the_catalog(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "LINGER_S", -1.0)
    await pool.post("/v1/chat/completions", {"model": "tiny", "messages": [HI]})
    metrics = pool.served.metrics
    assert metrics.models == ["tiny"]
    pool.served.catalog.update([])
    assert metrics.models == []
