"""Baseline policies. Only the simulator has them: none shares a rule with the production core."""

from __future__ import annotations

from collections.abc import Callable

from aegaeon_simulator.baselines.artifact import ArtifactPool
from aegaeon_simulator.baselines.job import Bench
from aegaeon_simulator.baselines.prewarm import PrewarmPool
from aegaeon_simulator.baselines.sleep import SleepPool
from aegaeon_simulator.baselines.slots import SlotPool
from aegaeon_simulator.baselines.station import FairPool, StaticPool
from aegaeon_simulator.devices import Device
from aegaeon_simulator.results.outcome import Outcome
from aegaeon_simulator.settings import Settings
from aegaeon_simulator.workload import Workload

_STATIC = {"dedicated": (1, 0.0), "muxserve": (2, 0.0), "muxserve-memory": (1 << 30, 0.2)}  # most models, KV's share
_QUEUES = {"serverlessllm-fair": FairPool, "prewarm": PrewarmPool, "vllm-sleep": SleepPool}


def simulate_baseline(
    settings: Settings, workload: Workload, device: Device, progress: Callable[[float], None]
) -> Outcome:
    """Run a policy that is not of the core. Raises DeviceError for a model that fits no device."""
    bench = Bench(settings, workload, device)
    count = settings.split.total
    if settings.policy == "paper-artifact":
        pool = ArtifactPool(bench, settings.split.prefill, settings.split.decode)
        workers = [w.run() for w in pool.prefill] + [w.run() for w in pool.decode]
        return bench.run(workers, pool.arrive, progress)
    if settings.policy in _STATIC:
        static = StaticPool(bench, count, *_STATIC[settings.policy])
        return bench.run(static.workers(), static.arrive, progress)
    if settings.policy in _QUEUES:
        queue = _QUEUES[settings.policy](bench, count)
        return bench.run(queue.workers(), queue.arrive, progress)
    slots = SlotPool(bench, count, plus=settings.policy == "serverlessllm-plus")
    return bench.run([w.run() for w in slots.workers], slots.arrive, progress)
