"""The metrics for Prometheus. Children are looked up once per request, not per token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import astuple, dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_TTFT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30)
_TBT_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 4)

_SECONDS = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_LENGTHS = tuple(factor * 10**power for power in range(6) for factor in (1, 2, 5))
_ENDS = (
    ("choice_seconds", "Arrival to a choice's last token", _SECONDS),
    ("choice_queue_seconds", "Arrival to the beginning of its prefill", _SECONDS),
    ("choice_prefill_seconds", "From there to its first token", _SECONDS),
    ("choice_decode_seconds", "From its first token to its last", _SECONDS),
    ("choice_prompt_tokens", "Length of its prompt", _LENGTHS),
    ("choice_output_tokens", "Length of its output", _LENGTHS),
)

LINGER_S = 600.0
"""for so long series of a model or tenant that is gone stay: scrapes meanwhile have its last values"""
# What stock endpoint pickers read: the model server protocol of the Gateway API Inference Extension. One series each,
# live at every scrape, since a picker that sees none for 200 ms takes the pod for full.
_PICKER = """\
# HELP vllm:num_requests_waiting Requests without a token yet.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting {waiting}
# HELP vllm:num_requests_running Requests whose tokens come.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running {running}
# HELP vllm:kv_cache_usage_perc Share of the pool's device memory for sequences that they have, 0 to 1.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc {kv_used:.4f}
"""


@dataclass(frozen=True, slots=True)
class Times:
    """Durations of a choice that is over, seconds: as a whole, until its prefill began, its prefill, from first to last
    token."""

    whole_s: float
    queue_s: float
    prefill_s: float
    decode_s: float


class ModelMetrics:
    """The children of one model."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self._requests = metrics.requests
        self._used = metrics.used
        self._model = model
        self.ttft = metrics.ttft.labels(model)
        self.tbt = metrics.tbt.labels(model)
        self.tokens = metrics.tokens.labels(model)
        self.on_time = metrics.on_time.labels(model)
        self.missed = metrics.missed.labels(model)
        self.queue_wait = metrics.queue_wait.labels(model)
        self.open_streams = metrics.open_streams.labels(model)
        self._ended = metrics.ended
        self._ends = [histogram.labels(model) for histogram in metrics.ends]
        self._prompt, self._cached = (metrics.prompts.labels(model, kind) for kind in ("all", "cached"))

    def finished(self, reason: str, times: Times, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """A choice is over: why it stopped, what it took, and how long it was."""
        self._ended.labels(self._model, reason).inc()
        for child, value in zip(self._ends, (*astuple(times), prompt_tokens, output_tokens), strict=True):
            child.observe(value)
        self._prompt.inc(prompt_tokens)
        self._cached.inc(cached_tokens)

    def token(self, *, gap_s: float, first: bool, on_time: bool) -> None:
        """One output token, `gap_s` seconds after the one before (the first: after the arrival)."""
        (self.ttft if first else self.tbt).observe(gap_s)
        self.tokens.inc()
        if on_time:
            self.on_time.inc()
        else:
            self._metrics.late += 1

    def deferred_token(self, *, on_time: bool) -> None:
        """One output token of a batch, whose client does not wait: no latency."""
        self.tokens.inc()
        if on_time:
            self.on_time.inc()

    def ended(self, outcome: str) -> None:
        """One request ended: ok, cancelled, or the code of its error."""
        self._requests.labels(self._model, outcome).inc()

    def used(self, tenant: str, prompt_tokens: int, output_tokens: int) -> None:
        """Count the tokens that one request is billed for; `tenant` is empty for a client without a key."""
        self._metrics.tenants.add(tenant)
        self._used.labels(tenant, self._model, "prompt").inc(prompt_tokens)
        self._used.labels(tenant, self._model, "output").inc(output_tokens)


class Metrics:
    """One registry per gateway, so that several may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="aegaeon_gateway", registry=self.registry)
        gauge = partial(Gauge, namespace="aegaeon_gateway", registry=self.registry)
        histogram = partial(Histogram, namespace="aegaeon_gateway", registry=self.registry)
        by_model = ["model"]
        self.ttft = histogram("ttft_seconds", "Arrival to first token", by_model, buckets=_TTFT_BUCKETS)
        self.tbt = histogram("tbt_seconds", "Between two tokens of a choice", by_model, buckets=_TBT_BUCKETS)
        waited = "Arrival to acceptance by the scheduler"
        self.queue_wait = histogram("queue_wait_seconds", waited, by_model, buckets=_TTFT_BUCKETS)
        self.tokens = counter("tokens", "Output tokens", by_model)
        self.on_time = counter("tokens_on_time", "Output tokens by their deadline", by_model)
        missed = "Tokens that were due and had not come when their request ended otherwise than with its answer"
        self.missed = counter("tokens_missed", missed, by_model)
        self.requests = counter("requests", "Ended requests by outcome", ["model", "outcome"])
        billed = "Tokens billed, by tenant; kind is prompt or output"
        self.used = counter("used_tokens", billed, ["tenant", "model", "kind"])
        self.ended = counter("choices", "Choices that are over, by why they stopped", ["model", "finish_reason"])
        self.prompts = counter("prompt_tokens", "Tokens of prompts; kind is all, or cached", ["model", "kind"])
        self.ends = [histogram(name, text, by_model, buckets=buckets) for name, text, buckets in _ENDS]
        refused = "Requests that were not served, by endpoint, HTTP status and code of the error"
        self.refused = counter("refused", refused, ["endpoint", "status", "code"])
        ignored = "Parts of requests that have no effect here, by field; what is in no table is other"
        self.ignored = counter("ignored_fields", ignored, ["field"])
        ended = "Connections that this side refused or ended, by reason"
        self._connections_ended = counter("connections_ended", ended, ["reason"])
        self.connections = gauge("connections", "Connections of clients")
        self.open_streams = gauge("open_streams", "Requests being answered", by_model)
        self.scheduler_up = gauge("scheduler_up", "1 while attached to the scheduler")
        self.kv_used = 0.0  # of the pool, as the scheduler says
        self.late = 0  # online tokens after their deadline
        self._models: dict[str, ModelMetrics] = {}
        self.tenants: set[str] = set()  # those that were billed
        self._gone: dict[tuple[str, str], float] = {}  # label and value, and since when
        of_models = (self.ttft, self.tbt, self.queue_wait, self.tokens, self.on_time, self.requests, self.ended)
        self._labelled = {
            "model": (*of_models, self.missed, self.used, self.prompts, *self.ends, self.open_streams),
            "tenant": (self.used,),
        }

    def of(self, model: str) -> ModelMetrics:
        """The metrics of a model of the catalog (never of a name that a client made up)."""
        if model not in self._models:
            self._models[model] = ModelMetrics(self, model)
        return self._models[model]

    def follow(self, models: Collection[str], tenants: Collection[str], now: float) -> None:
        """These are there; the series of those that have been gone for LINGER_S go. `now`: monotonic seconds."""
        gone = [("model", name) for name in self._models if name not in models]
        gone += [("tenant", name) for name in self.tenants if name not in tenants]
        self._gone = {series: self._gone.get(series, now) for series in gone}
        for (label, name), since in self._gone.items():
            if now - since > LINGER_S:
                self._forget(label, name)

    def _forget(self, label: str, name: str) -> None:
        for metric in self._labelled[label]:
            metric.remove_by_labels({label: name})
        if label == "model":
            del self._models[name]
        else:
            self.tenants.discard(name)

    @property
    def models(self) -> list[str]:
        """Models of the catalog that had requests; any thread may read them."""
        return list(self._models)

    def connection_ended(self, reason: str) -> None:
        """A connection was refused or ended by this side."""
        self._connections_ended.labels(reason).inc()

    def picker_page(self, waiting: int, running: int) -> bytes:
        """The page that stock endpoint pickers read, as of now: it names no model and no tenant."""
        return _PICKER.format(waiting=waiting, running=running, kv_used=self.kv_used).encode()

    def watch_redis(self, answers: Callable[[], bool]) -> None:
        """Add the gauge of a gateway with a Redis: 1 while that can be used."""
        up = Gauge("aegaeon_gateway_redis_up", "Whether Redis answers, which counts quotas", registry=self.registry)
        up.set_function(lambda: float(answers()))

    async def render(self) -> bytes:
        """Everything, in the text format."""
        return await asyncio.to_thread(generate_latest, self.registry)
