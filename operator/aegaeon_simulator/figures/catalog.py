"""All runs, in one place: panels of figures with their axis, loads, objective and devices.

Expensive runs have few loads; a curve ends once all three forms are far below 90 %, and is then refined there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.figures.points import Point, Poisson, Trace, Work
from aegaeon_simulator.settings import POLICIES, SPLIT, Split

FORMS = ("token", "request", "time")
OURS = "slack"
BASELINES = tuple(policy for policy in POLICIES if policy != OURS)
_SIXTEEN = Split(prefill=6, decode=10)
_MIX_A10 = ("qwen2_5_7b", "yi1_5_6b_chat")
_MIX_72B = ("qwen2_5_72b_tp4",)


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot: `axis` is the field of `work` that `loads` are put into.

    `roles` is the split of policies that have roles. With `refine` the 90 % crossing is sought between the loads.
    """

    name: str
    figure: str
    title: str
    axis: str
    work: Work
    loads: tuple[float, ...]
    slo: Slo = field(default_factory=lambda: Slo(10.0, 0.1))
    device: str = "h800-policy"
    roles: Split = _SIXTEEN
    policies: tuple[str, ...] = POLICIES
    refine: bool = True

    def point(self, policy: str, load: float, seed: int) -> Point:
        """The run of a policy at a load."""
        split = self.roles if policy in SPLIT else Split(unified=self.roles.total)
        change: dict[str, Any] = {self.axis: int(load) if self.axis == "models" else load}
        return Point(policy, self.device, split, self.slo, replace(self.work, **change), seed)

    def seeds(self, count: int) -> range:
        """A trace has no seed."""
        return range(count if isinstance(self.work, Poisson) else 1)


def panels(duration_s: float) -> list[Panel]:
    """Every panel; Poisson arrivals last `duration_s` (300 in the published run)."""
    return [
        *_figure_11(duration_s),
        *_artifact(),
        *_figure_12(duration_s),
        *_figure_13(duration_s),
        *_figure_14(duration_s),
        *_figure_17(duration_s),
        *_shapes(duration_s),
    ]


def _figure_11(seconds: float) -> list[Panel]:
    low, high, rates = Poisson(0, 0.1, seconds), Poisson(0, 0.5, seconds), Poisson(40, 0.0, seconds)
    return [
        Panel("11a", "11", "0.1 req/s per model", "models", low, (16, 32, 48, 64, 96, 192)),
        Panel("11b", "11", "0.5 req/s per model", "models", high, (16, 24, 32, 48, 72, 116)),
        Panel("11c", "11", "40 models", "rate", rates, (0.05, 0.2, 0.35, 0.55, 0.75)),
    ]


def _artifact() -> list[Panel]:
    """The artifact's own workload, device and length of trace."""
    low, high = Trace("ae_synth_80models_rps0.1.csv"), Trace("ae_synth_80models_rps0.5.csv")
    title = "the artifact's trace, its device, {} req/s per model"
    panels = [
        Panel("11a-artifact", "11", title.format(0.1), "models", low, (16, 24, 32, 36, 40, 48, 56, 64, 70, 72, 80)),
        Panel("11b-artifact", "11", title.format(0.5), "models", high, (16, 19, 22, 28, 34, 40, 46, 48, 52)),
    ]
    return [replace(panel, device="artifact", refine=False) for panel in panels]


def _figure_12(seconds: float) -> list[Panel]:
    def panel(name: str, title: str, work: Poisson, loads: tuple[float, ...]) -> Panel:
        return Panel(name, "12", f"{title}, {work.rate} req/s per model", "models", work, loads)

    low, high = Poisson(0, 0.1, seconds), Poisson(0, 0.5, seconds)
    few, many = (16, 24, 40, 64), (32, 64, 96)
    return [
        panel("12-input-0.1", "inputs doubled", replace(low, input_scale=2.0), many),
        panel("12-input-0.5", "inputs doubled", replace(high, input_scale=2.0), few),
        panel("12-output-0.1", "outputs doubled", replace(low, output_scale=2.0), many),
        panel("12-output-0.5", "outputs doubled", replace(high, output_scale=2.0), few),
    ]


def _figure_13(seconds: float) -> list[Panel]:
    work = Poisson(0, 0.1, seconds)
    loads, most = (16, 32, 48, 64, 80), {0.5: (120,), 0.3: (92,), 0.2: ()}
    return [
        Panel(f"13-{s}", "13", f"objectives x {s}", "models", work, loads + most[s], slo=Slo(10.0 * s, 0.1 * s))
        for s in most
    ]


def _figure_14(seconds: float) -> list[Panel]:
    """Setups of Figure 14; the second one is that of Figure 15."""
    low, high = Poisson(0, 0.1, seconds), Poisson(0, 0.5, seconds)
    return [
        Panel("14-0.1", "14", "0.1 req/s per model", "models", low, (16, 32, 64), refine=False),
        Panel("14-0.5", "14", "0.5 req/s per model", "models", high, (16, 32), refine=False),
    ]


def _figure_17(seconds: float) -> list[Panel]:
    """Left: 6B and 7B on A10, TBT varied. Right: 72B on four devices each, TTFT varied."""
    a10 = Poisson(0, 0.1, seconds, mix=_MIX_A10)
    big = Poisson(4, 0.0, seconds, mix=_MIX_72B)

    def left(name: str, tbt_s: float) -> Panel:
        panel = Panel(f"17-a10-{name}", "17", f"4 x A10, {name}", "models", a10, (2, 3, 4, 6, 8, 10, 12))
        return replace(panel, slo=Slo(5.0, tbt_s), device="a10", roles=Split(prefill=2, decode=2))

    def right(name: str, ttft_s: float) -> Panel:
        title = f"8 x H800 as 2 x TP4, four 72B, {name}"
        panel = Panel(f"17-tp4-{name}", "17", title, "rate", big, (0.1, 0.2, 0.3, 0.45, 0.6))
        return replace(panel, slo=Slo(ttft_s, 0.2), device="h800-tp4", roles=Split(prefill=1, decode=1))

    tbt, ttft = {"strict": 0.05, "normal": 0.1, "loose": 0.2}, {"strict": 5.0, "normal": 10.0, "loose": 20.0}
    return [left(*s) for s in tbt.items()] + [right(*s) for s in ttft.items()]


def _shapes(seconds: float) -> list[Panel]:
    """Traces with real shapes, compressed in time until systems differ; lengths capped as models' contexts are."""

    def panel(name: str, trace: Trace, loads: tuple[float, ...], roles: Split = _SIXTEEN) -> Panel:
        cut = replace(trace, window_s=seconds * 0.3, most_input=4000, most_output=2000)
        title = f"{name}, {roles.total} GPUs"
        return Panel(f"shape-{name}", "shapes", title, "speedup", cut, loads, roles=roles, refine=False)

    return [
        panel("market100", Trace("market100_arrivals.csv.gz", "market100_models.csv"), (1, 4, 8)),
        panel("bursty70", Trace("bursty70_rps0.1_arrivals.csv.gz", "bursty70_rps0.1_models.csv"), (1, 2, 3)),
        panel("prod47", Trace("prod47_arrivals.csv.gz", "prod47_models.csv", mix=True), (8, 16, 32)),
        panel("arena27", Trace("arena27_real.csv", mix=True), (2, 4, 12), Split(prefill=2, decode=2)),
        panel("mooncake", Trace("mooncake_conversation.csv.gz", single=True), (1, 4, 16)),
        panel("azure", Trace("azure_conv_2023.csv.gz", single=True), (1, 4, 16)),
    ]
