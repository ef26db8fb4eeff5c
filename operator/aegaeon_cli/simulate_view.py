"""The figures of `aegaeon simulate` on the terminal and as JSON; with several seeds also their means."""

from __future__ import annotations

from typing import Any

import click

from aegaeon_cli.results import write_json

_GROUPS = ("attainment", "requests", "ttft_s", "tbt_s", "latency_s", "gpu_seconds")
_PARTS = ("requests", "attainment", "ttft_s", "latency_s")


def write(output: str | None, results: list[dict[str, Any]]) -> None:
    """Write the figures to the file, if any, and print a summary."""
    figures: dict[str, Any] = results[0] if len(results) == 1 else {"runs": results, "mean": _mean(results)}
    write_json(output, figures)
    if output != "-":
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
    if len(figures["models"]) > 1:
        worst = figures["worst_decile"]
        click.echo(f"worst tenth of the models: {_tokens(worst)}")
    if len(figures["classes"]) > 1:
        for each in figures["classes"]:
            click.echo(f"TTFT {each['slo']['ttft_s']:g} s, TBT {each['slo']['tbt_s']:g} s: {_tokens(each)}")
    for name, each in figures.get("tenants", {}).items():
        click.echo(f"tenant {name}: {_tokens(each)}")


def _tokens(figures: dict[str, Any]) -> str:
    return f"{100 * figures['attainment']['token']:.1f} % (token)"


def _mean(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the runs that have the figure; for quantiles, the mean of the runs' quantiles."""
    means: dict[str, Any] = {key: _mean_of(results, key) for key in _GROUPS}
    for key in ("switches", "prefetch_hits", "disk_loads", "stall_s", "span_s"):
        means[key] = sum(r[key] for r in results) / len(results)
    means["models"] = {name: _mean_model([r["models"][name] for r in results]) for name in results[0]["models"]}
    means["classes"] = [_mean_class(results, slo) for slo in _slos(results)]
    means["worst_decile"] = _mean_worst([r["worst_decile"] for r in results if r["worst_decile"] is not None])
    tenants = dict.fromkeys(name for r in results for name in r.get("tenants", {}))
    if tenants:
        means["tenants"] = {name: _mean_part([r["tenants"].get(name) for r in results]) for name in tenants}
    return means


def _slos(results: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Objectives that occur in any of the runs."""
    return [dict(key) for key in dict.fromkeys(tuple(each["slo"].items()) for r in results for each in r["classes"])]


def _mean_class(results: list[dict[str, Any]], slo: dict[str, float]) -> dict[str, Any]:
    these = [next((each for each in r["classes"] if each["slo"] == slo), None) for r in results]
    models = max(each["models"] for each in these if each is not None)
    return {"slo": slo, "models": models, **_mean_part(these)}


def _mean_part(parts: list[dict[str, Any] | None]) -> dict[str, Any]:
    """Means of a class or a tenant, over the runs in which it has requests."""
    these = [part for part in parts if part is not None]
    return {key: _mean_of(these, key) for key in _PARTS}


def _mean_worst(parts: list[dict[str, Any]]) -> dict[str, Any] | None:
    if not parts:
        return None
    return {"models": parts[0]["models"], "attainment": _mean_of(parts, "attainment")}


def _mean_model(results: list[dict[str, Any]]) -> dict[str, Any]:
    fixed = {key: results[0][key] for key in ("kind", "slo")}
    return {**fixed, **{key: _mean_of(results, key) for key in ("requests", "attainment")}}


def _mean_of(results: list[dict[str, Any]], key: str) -> dict[str, float] | None:
    """The mean of a figure; None when no run has it."""
    parts = [r[key] for r in results if r[key] is not None]
    return {name: sum(p[name] for p in parts) / len(parts) for name in parts[0]} if parts else None
