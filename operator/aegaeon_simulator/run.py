"""One run from settings to figures: which simulator a policy belongs to, and what the answer says about its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aegaeon_simulator.baselines import simulate_baseline
from aegaeon_simulator.device import Device
from aegaeon_simulator.errors import SettingsError
from aegaeon_simulator.outcome import Outcome, report
from aegaeon_simulator.production import simulate_production
from aegaeon_simulator.settings import PRODUCTION, Settings
from aegaeon_simulator.workload import Workload
from aegaeon_simulator.workload.artifact import resampled


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that decides a run's outcome. `seed` is used where the device draws lengths anew."""

    settings: Settings
    workload: Workload
    device: Device
    seed: int = 0


def simulate(run: Run, progress: Callable[[float], None] = lambda at: None) -> Outcome:
    """Run it; `progress` is told the virtual time. Raises SettingsError and DeviceError for what cannot be run."""
    run.settings.check()
    for kind in set(run.workload.kinds):
        run.device.kind(kind)
    if run.device.host_cache_bytes and run.settings.policy not in PRODUCTION:
        raise SettingsError(f"{run.settings.policy} is modelled with every model in host memory; leave the cache out")
    simulator = simulate_production if run.settings.policy in PRODUCTION else simulate_baseline
    return simulator(run.settings, effective(run), run.device, progress)


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
        "device": {
            "name": device.name,
            "source": device.source,
            "licence": device.licence,
            "derived": list(device.derived),
        },
        "seed": run.seed,
        **report(outcome, s.slo_of, run.workload.names, effective(run).kinds),
    }
