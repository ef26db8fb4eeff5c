"""Dashboards that were made for vLLM's server fill from a gateway's metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

# What the panels of vLLM's published Grafana dashboard select, each by {model_name="$model_name"}, and what the panel
# of finish reasons groups by.
PANELS = {
    "e2e_request_latency_seconds": ("_bucket", "_sum", "_count"),
    "inter_token_latency_seconds": ("_bucket", "_sum", "_count"),
    "time_to_first_token_seconds": ("_bucket", "_sum", "_count"),
    "request_prompt_tokens": ("_bucket",),
    "request_generation_tokens": ("_bucket",),
    "request_queue_time_seconds": ("_sum",),
    "request_prefill_time_seconds": ("_sum",),
    "request_decode_time_seconds": ("_sum",),
    "prompt_tokens": ("_total",),
    "generation_tokens": ("_total",),
    "request_success": ("_total",),
    "num_requests_running": ("",),
    "num_requests_waiting": ("",),
    "kv_cache_usage_perc": ("",),
}


Series = dict[str, list[tuple[dict[str, str], float]]]


async def series(pool: Any, model: str) -> Series:
    """All samples of vLLM's names for a model: by the name, without prefix, labels and value."""
    found: Series = {}
    for family in text_string_to_metric_families(await pool.metrics()):
        for sample in family.samples:
            if sample.name.startswith("vllm:") and sample.labels.get("model_name") == model:
                found.setdefault(sample.name.removeprefix("vllm:"), []).append((sample.labels, sample.value))
    return found


async def test_every_panel_of_vllms_dashboard_has_series(pool: Any) -> None:
    await pool.chat(max_tokens=5)
    found = await series(pool, "tiny")
    missing = [name + end for name, ends in PANELS.items() for end in ends if not found.get(name + end)]
    assert not missing


async def test_the_series_have_what_was_served(pool: Any) -> None:
    status, answer, _ = await pool.chat(max_tokens=5, n=2)
    assert status == 200
    found = await series(pool, "tiny")
    prompt = answer["usage"]["prompt_tokens"]
    one = {name: values[0][1] for name, values in found.items() if len(values) == 1}
    assert one["generation_tokens_total"] == 10
    assert one["prompt_tokens_total"] == one["prefix_cache_queries_total"] == 2 * prompt, "each choice is a sequence"
    assert one["request_generation_tokens_sum"] == 10
    assert one["request_generation_tokens_count"] == one["e2e_request_latency_seconds_count"] == 2
    assert one["inter_token_latency_seconds_count"] == 8
    assert found["request_success_total"] == [({"model_name": "tiny", "finished_reason": "length"}, 2)]
    parts = ("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds")
    assert abs(sum(one[f"{part}_sum"] for part in parts) - one["e2e_request_latency_seconds_sum"]) < 1e-9


async def until(pool: Any, holds: Callable[[Series], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds(await series(pool, "tiny")):  # noqa: ASYNC110  # what a scrape shows is watched
            await asyncio.sleep(0.02)


async def test_requests_are_counted_while_they_wait_run_and_after_their_client_left(pool: Any, peer: Any) -> None:
    await pool.chat(max_tokens=1)
    peer.serve_tokens = False
    asked = asyncio.create_task(pool.chat(max_tokens=5))
    await peer.until(lambda: len(peer.submits) == 2)
    await until(pool, lambda found: found["num_requests_waiting"][0][1] == 1)
    submit = peer.submits[-1]
    await peer.push(peer.tokens_of(submit, submit.choices[0])[:2])
    await until(pool, lambda found: found["num_requests_running"][0][1] == 1)
    asked.cancel()
    aborted = ({"model_name": "tiny", "finished_reason": "abort"}, 1)
    await until(pool, lambda found: aborted in found["request_success_total"])
    assert (await series(pool, "tiny"))["num_requests_running"][0][1] == 0
