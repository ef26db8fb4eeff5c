"""`vllm-sleep`: one model awake on each device, the others asleep with their weights in host memory, KV dropped.

As vLLM's sleep mode has it (level 1), with a router that lets no model wait: after a share of TTFT the one awake
makes room for the first in line. What it was computing is computed again when it is awake next.
"""

from __future__ import annotations

from aegaeon_simulator.baselines.job import Bench
from aegaeon_simulator.baselines.process import Process
from aegaeon_simulator.baselines.station import FairPool, Station

AWAKE_TTFTS = 0.25  # for how many times TTFT a model stays awake while others wait, unless settings say how long


class SleepPool(FairPool):
    """One queue for all, and no model stays for longer than its time."""

    def __init__(self, bench: Bench, count: int) -> None:
        super().__init__(bench, count)
        self._awake_s = bench.settings.awake_s or AWAKE_TTFTS * bench.settings.slo.ttft_s

    def _work(self, station: Station) -> Process:
        end = self._bench.clock.now + self._awake_s
        yield from station.work(lambda: self._bench.clock.now >= end and self._others_wait(station))
        dropped = station.drop_kv()
        if dropped:
            self._queue += dropped
            self._bench.wake_all()

    def _others_wait(self, station: Station) -> bool:
        return any(job.model not in station.models for job in self._queue)
