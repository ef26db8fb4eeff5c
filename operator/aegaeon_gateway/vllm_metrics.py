"""The gateway's metrics under the names and labels of vLLM's server, for dashboards and alerts that were made for it.

They are the same series: a histogram keeps its buckets, which `histogram_quantile` asks nothing of. See vLLM's
documentation, "Production Metrics".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from aegaeon_gateway.metrics import Metrics

_PREFIX = "vllm:"
_NAMES = {
    "aegaeon_gateway_ttft_seconds": "time_to_first_token_seconds",
    "aegaeon_gateway_tbt_seconds": "inter_token_latency_seconds",
    "aegaeon_gateway_tokens": "generation_tokens",
    "aegaeon_gateway_choices": "request_success",
    "aegaeon_gateway_choice_seconds": "e2e_request_latency_seconds",
    "aegaeon_gateway_choice_queue_seconds": "request_queue_time_seconds",
    "aegaeon_gateway_choice_prefill_seconds": "request_prefill_time_seconds",
    "aegaeon_gateway_choice_decode_seconds": "request_decode_time_seconds",
    "aegaeon_gateway_choice_prompt_tokens": "request_prompt_tokens",
    "aegaeon_gateway_choice_output_tokens": "request_generation_tokens",
}
_BY_KIND = {"all": ("prompt_tokens", "prefix_cache_queries"), "cached": ("prefix_cache_hits",)}
_LABELS = {"model": "model_name", "finish_reason": "finished_reason"}

Load = Callable[[], dict[str, tuple[int, int]]]


class VllmNames(Collector):
    """`load`: requests of each model that wait for their first token, and that get tokens."""

    def __init__(self, metrics: Metrics, load: Load) -> None:
        self._metrics = metrics
        self._load = load

    def collect(self) -> Iterator[Metric]:
        """Every family anew, at each scrape."""
        yield from self._gauges()
        metrics = self._metrics
        for source in (metrics.ttft, metrics.tbt, metrics.tokens, metrics.ended, *metrics.ends):
            for family in source.collect():
                yield _renamed(family, _NAMES[family.name])
        for family in metrics.prompts.collect():
            for kind, names in _BY_KIND.items():
                yield from (_renamed(family, name, kind) for name in names)

    def _gauges(self) -> Iterator[Metric]:
        waiting = _gauge("num_requests_waiting", "Requests without a token yet.")
        running = _gauge("num_requests_running", "Requests whose tokens come.")
        used = _gauge("kv_cache_usage_perc", "Share of the pool's device memory for sequences that they have, 0 to 1.")
        load = self._load()
        for model in self._metrics.models:
            waits, runs = load.get(model, (0, 0))
            waiting.add_metric([model], waits)
            running.add_metric([model], runs)
            used.add_metric([model], self._metrics.kv_used)
        return iter((waiting, running, used))


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(_PREFIX + name, text, labels=["model_name"])


def _renamed(family: Metric, name: str, kind: str = "") -> Metric:
    """The same samples under another name and other labels; of a family with kinds those of `kind`."""
    renamed = Metric(_PREFIX + name, family.documentation, family.type)
    for sample in family.samples:
        if sample.labels.get("kind", "") == kind:
            labels = {_LABELS.get(key, key): value for key, value in sample.labels.items() if key != "kind"}
            renamed.add_sample(_PREFIX + name + sample.name.removeprefix(family.name), labels, sample.value)
    return renamed
