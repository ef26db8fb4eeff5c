"""The table of claims: what was published, what our runs give, whether that is within tolerance."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from itertools import pairwise
from typing import Any

from aegaeon_simulator.figures.actives import MODELS
from aegaeon_simulator.figures.book import Book
from aegaeon_simulator.figures.measure import STALL_QUANTILES
from aegaeon_simulator.results.usage import HIT_S

PAPER, SLLM, PLUS = "paper", "serverlessllm", "serverlessllm-plus"
_SLOS = ("strict", "normal", "loose")


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row. `ours` is None when the runs have no value for it."""

    id: str
    where: str
    statement: str
    published: str
    ours: float | None
    within: bool | None


def published() -> dict[str, Any]:
    """Published values of other work, with sources."""
    text = (resources.files("aegaeon_simulator.figures") / "data" / "published.json").read_text("utf-8")
    values: dict[str, Any] = json.loads(text)
    return values


def verdicts(book: Book) -> list[Verdict]:
    """Every claim, in the order of the paper."""
    return [_verdict(claim, _VALUES[claim["id"]](book)) for claim in published()["claims"]]


def _verdict(claim: dict[str, Any], ours: float | None) -> Verdict:
    within = None if ours is None else claim.get("least", -1e9) <= ours <= claim.get("most", 1e9)
    return Verdict(claim["id"], claim["where"], claim["statement"], claim["published"], ours, within)


@dataclass(frozen=True, slots=True)
class OraclePoint:
    """One point of the artifact beside ours, percent, time form. `ours` is None where it was not run."""

    panel: str
    policy: str
    load: float
    published: float
    ours: float | None

    @property
    def within(self) -> bool | None:
        """Two points of attainment are noise."""
        return None if self.ours is None else abs(self.ours - self.published) <= 2.0


def oracle(book: Book) -> list[OraclePoint]:
    """Every published point of the artifact's simulator."""
    rows = []
    for panel, policies in published()["artifact"].items():
        for policy, points in policies.items():
            for load, value in points:
                share = book.share(panel, policy, load, "time")
                rows.append(OraclePoint(panel, policy, load, value, None if share is None else 100 * share))
    return rows


def _ratio(panel: str, policy: str = PAPER, form: str = "token") -> Callable[[Book], float | None]:
    def value(book: Book) -> float | None:
        paper, sllm = book.crossing(panel, policy, form), book.crossing(panel, SLLM, form)
        return paper / sllm if paper and sllm else None

    return value


def _crossing(panel: str, policy: str = PAPER) -> Callable[[Book], float | None]:
    return lambda book: book.crossing(panel, policy, "token")


def _increasing(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(all(a < b for a, b in pairwise(known))) if len(known) == len(values) else None


def _overloaded_order(book: Book) -> float | None:
    """Compare at the highest load that both ran."""
    loads = sorted(set(book.loads("11b", SLLM)) & set(book.loads("11b", PLUS)))
    if not loads:
        return None
    plus, sllm = book.share("11b", PLUS, loads[-1], "token"), book.share("11b", SLLM, loads[-1], "token")
    return None if plus is None or sllm is None else float(plus <= sllm)


def _best_output_ratio(book: Book) -> float | None:
    ratios = [_ratio(f"12-output-{rate}")(book) for rate in (0.1, 0.5)]
    return max((r for r in ratios if r is not None), default=None)


def _input_drop(book: Book) -> float | None:
    plain, doubled = book.crossing("11a", PAPER, "token"), book.crossing("12-input-0.1", PAPER, "token")
    return 1 - doubled / plain if plain and doubled else None


def _all_served(book: Book) -> float | None:
    """The largest load at which MuxServe has a place for every model."""
    rows = book.rows("11a-artifact", "muxserve")
    return max((row["load"] for row in rows if not row["requests"]["unserved"]), default=None)


def _hits(book: Book) -> float | None:
    stalls = book.value("14-0.1", PAPER, 32, "stalls_s")
    return None if stalls is None else sum(s <= HIT_S for s in stalls) / len(STALL_QUANTILES)


def _longest(book: Book) -> float | None:
    stalls = book.value("14-0.1", PAPER, 32, "stalls_s")
    return None if stalls is None else float(stalls[-2])


def _prompt_wait(book: Book) -> float | None:
    parts = book.value("14-0.1", PAPER, 64, "latency_parts")
    return None if parts is None else float(parts["prefill_wait"])


def _tp4_order(book: Book) -> float | None:
    names = [f"17-tp4-{s}" for s in _SLOS]
    loads = set.intersection(*(set(book.loads(name, PAPER)) for name in names))
    rows = [[book.share(name, PAPER, load, "token") or 0.0 for name in names] for load in loads]
    return float(all(row == sorted(row) for row in rows)) if rows else None


_VALUES: dict[str, Callable[[Book], float | None]] = {
    "thm3.1": lambda book: book.figure_4["expected"],
    "fig4": lambda book: book.figure_4["mean"],
    "pool_bound": lambda book: MODELS / book.figure_4["expected"],
    "switch_lb": lambda book: 26 / 32,
    "prod_gpus": lambda book: 1 - 213 / 1192,
    "fig11a_aeg": _crossing("11a"),
    "fig11a_sllm_implied": _crossing("11a", SLLM),
    "fig11a_ratio": _ratio("11a"),
    "fig11a_ratio_artifact": _ratio("11a-artifact", "paper-artifact", "time"),
    "fig11a_sllmp": lambda book: _increasing([book.crossing("11a", p, "token") for p in (SLLM, PLUS, PAPER)]),
    "fig11b_ratio": _ratio("11b"),
    "fig11b_ratio_artifact": _ratio("11b-artifact", "paper-artifact", "time"),
    "fig11b_order": _overloaded_order,
    "fig11c_low": lambda book: book.share("11c", PAPER, 0.05, "token"),
    "fig11c_ratio": _ratio("11c"),
    "mux32": _all_served,
    "fig12_ox2": _best_output_ratio,
    "fig12_ix2": _input_drop,
    "fig13_slo05": _crossing("13-0.5"),
    "fig13_slo05_sllm": _ratio("13-0.5"),
    "fig13_slo03": _crossing("13-0.3"),
    "fig13_slo03_sllm": _ratio("13-0.3"),
    "fig13_slo02": _crossing("13-0.2"),
    "fig13_slo02_sllm": _ratio("13-0.2"),
    "fig14": _prompt_wait,
    "fig15_half": _hits,
    "fig15_max": _longest,
    "fig17_a10": lambda book: _increasing([book.crossing(f"17-a10-{s}", PAPER, "token") for s in _SLOS]),
    "fig17_tp4": _tp4_order,
}
