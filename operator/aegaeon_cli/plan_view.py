"""A plan on the terminal: the answer in a sentence, tables of costs, attainment by GPUs as bars."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

Figures = dict[str, Any]
_BAR = 50
_MOST_TENANTS = 20


def show_plan(plan: Figures) -> None:
    """Print the plan, at most 100 columns wide."""
    console = Console(highlight=False)
    console.print(_sentence(plan))
    console.print(_serving(plan))
    console.print(_pools(plan))
    console.print(_kinds(plan))
    console.print(_parts(plan))
    if len(plan["gpu_hours_a_day_by_tenant"]) > 1:
        console.print(_tenants(plan))
    console.print(_curve(plan))
    console.print(_basis(plan), style="dim")


def show_answer(answer: Figures) -> None:
    """Print the answer to an admission question."""
    console = Console(highlight=False)
    console.print(f"{'yes' if answer['admit'] else 'no'}: {answer['reason']}")
    own = answer["candidate"]
    outcome = "received no request in the window" if own is None else f"has {_percent(own)} on time"
    console.print(f"the model itself {outcome}; the GPUs are busy {_percent(answer['busy_share'])} of the time")


def _sentence(plan: Figures) -> str:
    goal, best = plan["objective"], plan["best"]
    target = f"{_percent(goal['share'])} ({goal['form']}) within TTFT {goal['ttft_s']:g} s, TBT {goal['tbt_s']:g} s"
    single = plan["gpus"] == 1
    verb = ("meets" if single else "meet") if plan["meets"] else ("does not meet" if single else "do not meet")
    return (
        f"{_counted(plan['gpus'], 'GPU')} ({_split(best)}) {verb} {target} for "
        f"{_counted(len(plan['models']), 'model')} at "
        f"{plan['tokens_per_s']:.0f} output tokens/s: {_share(best['attainment'], goal)}"
    )


def _share(share: Figures, goal: Figures) -> str:
    low, high = 100 * share["low"], 100 * share["high"]
    return f"{_percent(share['mean'])} on time (each bound at {100 * goal['confidence']:g} %: {low:.1f} to {high:.1f})"


def _split(point: Figures) -> str:
    return " + ".join(f"{count} {role}" for role, count in point["split"].items() if count)


def _serving(plan: Figures) -> Table:
    names = {"pool": "this pool", "muxserve": "two models a GPU (muxserve)", "dedicated": "dedicated GPUs"}
    table = _table("savings", "serving", "GPUs", "price of 1M\noutput tokens", "the pool\nsaves")
    for key, name in names.items():
        row = plan["serving"][key]
        if row is None:
            table.add_row(name, "none suffices", "", "")
            continue
        table.add_row(name, str(row["gpus"]), f"{row['cost_per_million_tokens']:.3f}", _percent(row["saving"]))
    return table


def _pools(plan: Figures) -> Table:
    table = _table("splits", "GPUs by role", "on time", "at least", "busy")
    shown = [p for p in plan["curve"] if p["gpus"] == plan["gpus"]] + plan["splits"]
    if plan["best"] not in shown:
        shown.insert(0, plan["best"])
    for point in shown:
        share = point["attainment"]
        table.add_row(_split(point), _percent(share["mean"]), _percent(share["low"]), _percent(point["busy_share"]))
    return table


def _kinds(plan: Figures) -> Table:
    """Models grouped by kind; the JSON lists each model."""
    kinds: defaultdict[str, list[Figures]] = defaultdict(list)
    for model in plan["models"]:
        kinds[model["kind"]].append(model)
    table = _table(
        "models by kind", "kind", "models", "requests/s", "GPU-hours\na day", "own GPU pays from\nrequests/s (a model)"
    )
    for kind, models in sorted(kinds.items()):
        rates = [m["break_even_rate"] for m in models if m["break_even_rate"]]
        hours, total = sum(m["gpu_hours_a_day"] for m in models), sum(m["rate"] for m in models)
        even = f"{median(rates):.2f}" if rates else "-"
        table.add_row(kind, str(len(models)), f"{total:.2f}", f"{hours:.1f}", even)
    return table


def _parts(plan: Figures) -> Table:
    """Who is on time in this pool, by objective and tenant, and of the models that are served worst."""
    table = _table("on time, by part", "part", "on time")
    if len(plan["classes"]) > 1:
        for each in plan["classes"]:
            slo = each["slo"]
            table.add_row(f"TTFT {slo['ttft_s']:g} s, TBT {slo['tbt_s']:g} s", _or_none(each["attainment"]))
    for tenant, share in list(plan["attainment_by_tenant"].items())[:_MOST_TENANTS]:
        table.add_row(f"tenant {tenant}", _or_none(share))
    table.add_row("worst tenth of the models", _or_none(plan["worst_decile"]))
    return table


def _or_none(share: float | None) -> str:
    return "no request" if share is None else _percent(share)


def _tenants(plan: Figures) -> Table:
    table = _table("GPU-hours a day by tenant", "tenant", "GPU-hours")
    hours = sorted(plan["gpu_hours_a_day_by_tenant"].items(), key=lambda item: -item[1])
    for tenant, each in hours[:_MOST_TENANTS]:
        table.add_row(tenant, f"{each:.1f}")
    return table


def _curve(plan: Figures) -> str:
    goal = plan["objective"]["share"]
    lines = [f"\n[bold]on time against GPUs[/bold] (| marks the target: {_percent(goal)})"]
    mark = round(goal * _BAR)
    for point in plan["curve"]:
        share = point["attainment"]["mean"]
        bar = "█" * round(share * _BAR)
        bar = bar.ljust(_BAR)
        bar = bar[:mark] + "|" + bar[mark:]
        lines.append(f"{point['gpus']:>5} {bar} {_percent(share)}")
    return "\n".join(lines)


def _basis(plan: Figures) -> str:
    window, device = plan["window"], plan["device"]
    lines = [
        f"Simulated: {_counted(window['seeds'], 'window')} of {window['seconds']:.0f} s; a GPU costs "
        f"{plan['price_per_gpu_hour']:g} an hour; break-even is in proportion to GPU-seconds.",
        f"Constants of {device['name']}: {device['source']}.",
    ]
    if plan["sessions"]:
        lines.insert(1, "Serving without a pool is simulated without sessions: every request is sent at its time.")
    lines += [f"Derived, not measured: {what}" for what in device["derived"]]
    return "\n".join(lines)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if not index else "right", no_wrap=True, vertical="bottom")
    return table


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
