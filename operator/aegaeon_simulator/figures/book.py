"""The results of all panels as JSON, with queries: plots and pages are made from these files only."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aegaeon_simulator.figures.catalog import FORMS
from aegaeon_simulator.figures.curves import Curve
from aegaeon_simulator.figures.errors import FiguresError
from aegaeon_simulator.results.attainment_curve import crossing

Result = dict[str, Any]
_MEANS = ("switches", "prefetch_hits", "stall_s", "span_s")


@dataclass(frozen=True, slots=True)
class Book:
    """Panels by name, each with `loads` and the results per policy; Figure 4; the run's settings."""

    panels: dict[str, Any]
    figure_4: dict[str, Any]
    run: dict[str, Any]

    def share(self, panel: str, policy: str, load: float, form: str) -> float | None:
        """Attainment 0..1; None when the point was not run."""
        shares = self.value(panel, policy, load, "attainment")
        return None if shares is None else float(shares[form])

    def value(self, panel: str, policy: str, load: float, name: str) -> Any:
        """Any stored value of a run; None when the point was not run."""
        for row in self.rows(panel, policy):
            if row["load"] == load:
                return row[name]
        return None

    def rows(self, panel: str, policy: str) -> list[Result]:
        """Results in order of load."""
        rows: list[Result] = self.panels.get(panel, {}).get("curves", {}).get(policy, [])
        return rows

    def loads(self, panel: str, policy: str) -> list[float]:
        """The loads that were run."""
        return [row["load"] for row in self.rows(panel, policy)]

    def band(self, panel: str, policy: str, form: str) -> list[tuple[float, float]]:
        """The lowest and highest attainment of the seeds, 0..1, in order of load."""
        return [tuple(row["between"][form]) for row in self.rows(panel, policy)]

    def line(self, panel: str, policy: str, form: str) -> list[tuple[float, float]]:
        """(load, attainment 0..1) in order of load."""
        return [(row["load"], row["attainment"][form]) for row in self.rows(panel, policy)]

    def crossing(self, panel: str, policy: str, form: str) -> float | None:
        """The load at which attainment first falls below 90 %; None when it never does."""
        line = self.line(panel, policy, form)
        return crossing(line) if line else None


def book_of(curves: list[Curve], figure_4: dict[str, Any], run: dict[str, Any]) -> Book:
    """All results, as means over seeds."""
    panels: dict[str, Any] = {}
    for curve in curves:
        panel = panels.setdefault(curve.panel.name, {**_described(curve), "curves": {}})
        panel["curves"][curve.policy] = [_row(load, curve.results[load]) for load in sorted(curve.results)]
    return Book(panels, figure_4, run)


def _described(curve: Curve) -> dict[str, Any]:
    panel = curve.panel
    about: dict[str, Any] = {name: getattr(panel, name) for name in ("figure", "title", "axis", "device")}
    derived = next(iter(curve.results.values()))[0]["derived"]
    return {
        **about,
        "slo": asdict(panel.slo),
        "roles": asdict(panel.roles),
        "work": asdict(panel.work),
        "derived": derived,
    }


def _row(load: float, results: list[Result]) -> Result:
    """Attainment and counts are means over seeds, `between` their minimum and maximum; quantiles are those of the
    first seed."""
    first = results[0]
    each = {form: [r["attainment"][form] for r in results] for form in FORMS}
    shares = {form: sum(values) / len(values) for form, values in each.items()}
    between = {form: [min(values), max(values)] for form, values in each.items()}
    means = {name: sum(r[name] for r in results) / len(results) for name in _MEANS}
    kept = {name: first[name] for name in ("requests", "ttft_s", "latency_parts", "stalls_s", "gpu_seconds")}
    return {"load": load, "attainment": shares, "between": between, "seeds": len(results), **means, **kept}


def write(book: Book, folder: Path) -> None:
    """Write a file for each panel, Figure 4, and the run's settings. Equal results give identical bytes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in [*book.panels.items(), ("4", book.figure_4), ("run", book.run)]:
            (folder / f"figure-{name}.json").write_text(json.dumps(_rounded(content), sort_keys=True) + "\n", "utf-8")
    except OSError as error:
        raise FiguresError(f"{folder}: figures cannot be written into this folder ({error})") from error


def write_json(file: Path, content: Any) -> None:
    """Write a file that is derived from the results, beside them."""
    try:
        file.write_text(json.dumps(_rounded(content), sort_keys=True, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise FiguresError(f"{file}: cannot be written ({error})") from error


def read(folder: Path) -> Book:
    """Read the files that `write` wrote."""
    try:
        files = {p.stem.removeprefix("figure-"): json.loads(p.read_text("utf-8")) for p in folder.glob("figure-*.json")}
        return Book({k: files[k] for k in sorted(files) if k not in ("4", "run")}, files["4"], files["run"])
    except (OSError, json.JSONDecodeError, KeyError) as error:
        raise FiguresError(
            f"{folder}: contains no complete figures ({error!r}); make them with `make figures`"
        ) from error


def _rounded(value: Any) -> Any:
    """Round to six digits, more than the runs' precision, to keep files small."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, (list, tuple)) else value
