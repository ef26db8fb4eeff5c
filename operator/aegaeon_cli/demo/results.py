"""The measurements of the clients: a row for every model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.table import Table

from aegaeon_cli.demo.traffic import Exchange
from aegaeon_proto.v1.gateway_pb2 import PoolStatus
from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.slo import Attainment, attainment


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One row. Times in seconds; `attained` shares in 0..1; `switches` are loads of the model on a decode engine."""

    model: str
    requests: int
    tokens: int
    ttft: tuple[float, float]
    tbt: tuple[float, float]
    attained: Attainment
    switches: int
    mean_stall_s: float


def results(exchanges: Sequence[Exchange], status: PoolStatus, objectives: Mapping[str, Slo]) -> list[ModelResult]:
    """A row for every model that has an objective. A request that got no answer counts as late in every form."""
    return [
        _result(model, [e for e in exchanges if e.chat.model == model], status, slo)
        for model, slo in objectives.items()
    ]


def _result(model: str, exchanges: Sequence[Exchange], status: PoolStatus, slo: Slo) -> ModelResult:
    traffic = next((row for row in status.models if row.model == model), None)
    switches = traffic.switches if traffic else 0
    length = round(sum(len(e.times) for e in exchanges) / max(1, sum(bool(e.times) for e in exchanges)))
    return ModelResult(
        model=model,
        requests=len(exchanges),
        tokens=sum(len(e.tokens) for e in exchanges),
        ttft=_p50_p99(e.times[0] for e in exchanges if e.times),
        tbt=_p50_p99(later - earlier for e in exchanges for earlier, later in pairwise(e.times)),
        attained=attainment((e.times, slo, len(e.times) or length) for e in exchanges),
        switches=switches,
        mean_stall_s=(traffic.switch_s + traffic.stall_s) / switches if traffic and switches else 0.0,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else 0.0


def _p50_p99(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return quantile(known, 0.5), quantile(known, 0.99)


def table(rows: Sequence[ModelResult]) -> Table:
    """The results as a table for the terminal, 80 columns wide."""
    shown = Table(title="as the clients saw it", title_justify="left", title_style="bold", box=None, pad_edge=False)
    shown.add_column("\nmodel", no_wrap=True)
    headings = ("\nrequests", "\ntokens", "TTFT ms\np50 / p99", "TBT ms\np50 / p99")
    for heading in (*headings, "on time, %:\ntoken/request/time", "\nswitches", "mean\nstall ms"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(row.model, str(row.requests), str(row.tokens), *_figures(row))
    return shown


def _figures(row: ModelResult) -> list[str]:
    ttft, tbt = (" / ".join(_milliseconds(seconds) for seconds in pair) for pair in (row.ttft, row.tbt))
    attained = (row.attained.token, row.attained.request, row.attained.time)
    shares = "/".join(f"{100 * share:.1f}" for share in attained)
    return [ttft, tbt, shares, str(row.switches), f"{1000 * row.mean_stall_s:.1f}"]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}" if seconds < 0.01 else f"{1000 * seconds:.0f}"
