"""One run from settings to figures: which simulator a policy belongs to, and what the answer says about its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aegaeon_simulator.baselines import simulate_baseline
from aegaeon_simulator.devices import Device, Machines, More
from aegaeon_simulator.errors import SettingsError
from aegaeon_simulator.pool.production import simulate_production
from aegaeon_simulator.results.outcome import Outcome
from aegaeon_simulator.results.report import by_tier, report, seconds_by_device
from aegaeon_simulator.settings import PRODUCTION, Settings
from aegaeon_simulator.workload import Workload
from aegaeon_simulator.workload.artifact import resampled
from aegaeon_simulator.workload.content import shares_text


@dataclass(frozen=True, slots=True)
class Run:
    """All inputs of a run. `seed` applies where the device resamples lengths."""

    settings: Settings
    workload: Workload
    device: Device
    seed: int = 0
    also: tuple[More, ...] = ()  # beside those of the split

    @property
    def machines(self) -> Machines:
        """Every device. Raises DeviceError."""
        return Machines.of(self.device, self.also)


def simulate(run: Run, progress: Callable[[float], None] = lambda at: None) -> Outcome:
    """Run it; `progress` gets the virtual time. Raises SettingsError and DeviceError for what cannot be run."""
    run.settings.check()
    machines = run.machines
    _check_also(run)
    for kind in sorted(set(run.workload.kinds)):
        machines.kind(kind)
    if run.settings.policy in PRODUCTION:
        return simulate_production(run.settings, effective(run), machines, progress)
    _check_baseline(run)
    return simulate_baseline(run.settings, effective(run), run.device, progress)


def _check_baseline(run: Run) -> None:
    """Refuse what the modules that stand for other systems do not have."""
    policy = run.settings.policy
    if run.device.host_cache_bytes:
        raise SettingsError(f"{policy} is modelled with every model in host memory; leave the cache out")
    if any(arrival.session for arrival in run.workload.arrivals):
        raise SettingsError(
            f"{policy} is modelled without sessions: no request waits for the answer before it; leave the column "
            f"session out"
        )
    if shares_text(run.workload.arrivals):
        raise SettingsError(f"{policy} is modelled without a prefix cache; leave the column shared_len out")


def _check_also(run: Run) -> None:
    settings, also = run.settings, run.also
    if not also:
        return
    if min(more.count for more in also) < 1:
        raise SettingsError("--also: at least one device is needed; give N:NAME with N of 1 or more, or leave it out")
    if settings.policy not in PRODUCTION:
        raise SettingsError(f"{settings.policy} is modelled on devices of one make; leave --also out")
    if not settings.split.unified or settings.split.prefill or settings.split.decode:
        raise SettingsError("--also adds devices without roles; give --unified N in place of --prefill and --decode")


def effective(run: Run) -> Workload:
    """The requests as the device's simulator takes them."""
    if not run.device.resample:
        return run.workload
    longest = {name: kind.context_tokens for name, kind in run.device.kinds.items()}
    return resampled(run.workload, longest, run.seed)


def result(run: Run, outcome: Outcome) -> dict[str, Any]:
    """The JSON of one run: what was asked, where constants come from, what came out."""
    s, device = run.settings, run.device
    return {
        "policy": s.policy,
        "gpus": {"prefill": s.split.prefill, "decode": s.split.decode, "unified": s.split.unified},
        "slo": {"ttft_s": s.slo.ttft_s, "tbt_s": s.slo.tbt_s},
        "device": _described(device),
        **({"also": [{"devices": m.count, "device": _described(m.device)} for m in run.also]} if run.also else {}),
        "seed": run.seed,
        **report(outcome, s.slo_of, run.workload.names, effective(run).kinds),
        **({"tiers": by_tier(outcome, s.slo_of, run.workload.terms)} if run.workload.terms else {}),
        **({"gpu_seconds_by_device": seconds_by_device(outcome)} if run.also else {}),
    }


def _described(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "source": device.source,
        "licence": device.licence,
        "derived": list(device.derived),
    }
