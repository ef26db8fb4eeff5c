"""The figures of `aegaeon simulate` on the terminal and as JSON; with several seeds also their means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from aegaeon_cli.errors import BadFileError

_GROUPS = ("attainment", "requests", "ttft_s", "tbt_s", "gpu_seconds")


def write(output: str | None, results: list[dict[str, Any]]) -> None:
    """Write the figures to the file, if any, and print a summary."""
    figures: dict[str, Any] = results[0] if len(results) == 1 else {"runs": results, "mean": _mean(results)}
    text = json.dumps(figures, indent=2, sort_keys=True) + "\n"
    if output == "-":
        click.echo(text, nl=False)
        return
    if output is not None:
        try:
            Path(output).write_text(text, "utf-8")
        except OSError as error:
            raise BadFileError(f"--json {output}: cannot be written ({error})") from error
    _summary(figures.get("mean", figures))


def _summary(figures: dict[str, Any]) -> None:
    shares = figures["attainment"]
    if shares is None:
        click.echo("no request was offered")
        return
    forms = (f"{100 * shares[form]:.1f} % ({form})" for form in ("token", "request", "time"))
    click.echo(f"on time: {', '.join(forms)}")
    counts = (f"{figures['requests'][name]:g} {name}" for name in ("offered", "finished", "unserved", "refused"))
    click.echo(f"requests: {', '.join(counts)}")


def _mean(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the runs that have the figure; for quantiles, the mean of the runs' quantiles."""
    means: dict[str, Any] = {key: _mean_of(results, key) for key in _GROUPS}
    for key in ("switches", "prefetch_hits", "disk_loads", "stall_s", "span_s"):
        means[key] = sum(r[key] for r in results) / len(results)
    means["models"] = {name: _mean_model([r["models"][name] for r in results]) for name in results[0]["models"]}
    return means


def _mean_model(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": results[0]["kind"], **{key: _mean_of(results, key) for key in ("requests", "attainment")}}


def _mean_of(results: list[dict[str, Any]], key: str) -> dict[str, float] | None:
    """The mean of a figure; None when no run has it."""
    parts = [r[key] for r in results if r[key] is not None]
    return {name: sum(p[name] for p in parts) / len(parts) for name in parts[0]} if parts else None
