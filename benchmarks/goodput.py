"""Policy aegaeon at the loads that it is held to: tokens on time on 16 unified GPUs, the mean of three seeds.

Run: python -m benchmarks.goodput [POINT ...] [--seeds 1,2,3] [--seconds 300]. A point is 0.1, 0.5 (requests per second
and model) or x0.5, x0.3, x0.2 (objective scaled, at 0.1/s), with H in front under harsher costs; host512 has host
memory for 512 GB of weights a node, and models come from NVMe at 7 GB/s. All others have the 2 TB a node of the paper's
testbed: for weights, all of them where they fit, and for KV. A model's first step on an engine is charged.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from benchmarks.report import Row, read_settings, report

from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.slo import Attainment
from aegaeon_simulator.devices import Device, read_device
from aegaeon_simulator.parallel import processes
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Lengths, poisson

LENGTHS = Path(__file__).parent / "data" / "sharegpt_pairs.csv"
GPUS = 16
BAR = 0.9  # of all tokens
PROCESSES = 2
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Point:
    """Models that are to be carried; requests per second of each; the objective as a share of 10 s and 0.1 s."""

    models: int
    rate: float
    scale: float
    device: str = "h800-policy"
    host_bytes: float = 0  # of a node, for weights; 0: for all models, or as many as fit beside the least for KV

    @property
    def slo(self) -> Slo:
        """The objective of its models."""
        return Slo(10.0 * self.scale, 0.1 * self.scale)


POINTS = {
    "0.1": Point(185, 0.1, 1.0),
    "0.5": Point(115, 0.5, 1.0),
    "x0.5": Point(115, 0.1, 0.5),
    "x0.3": Point(88, 0.1, 0.3),
    "x0.2": Point(72, 0.1, 0.2),
}
POINTS |= {
    f"H{name}": replace(POINTS[name], models=models, device="h800-harsh")
    for name, models in (("0.1", 135), ("0.5", 88), ("x0.5", 84), ("x0.3", 60), ("x0.2", 46))
}
POINTS["host512"] = Point(100, 0.1, 1.0, host_bytes=512e9)
NVME = 7e9  # bytes per second
NODE_BYTES, KV_BYTES = 2e12, 50e9  # host memory of a node; of it for KV, for each GPU, at least
FIRST_S = 0.2  # seconds of a model's first decode step on an engine, for which graphs are captured; assumed
_SPARE = 1.02  # of what a node's share of the models takes: no two nodes have the same bytes


def run_of(point: Point, seed: int, seconds: float) -> Run:
    """The run of a point with arrivals for so many seconds."""
    workload = poisson(Lengths.read(LENGTHS), models=point.models, rate=point.rate, duration_s=seconds, seed=seed)
    settings = Settings("slack", Split(unified=GPUS), point.slo)
    device = read_device(point.device)
    device = _with_host_memory(device, point, sum(device.kind(kind).weight_bytes for kind in workload.kinds))
    return Run(settings, workload, replace(device, first_s=FIRST_S), seed)


def _with_host_memory(device: Device, point: Point, weights: int) -> Device:
    """Of so many bytes of weights, or of what is given for them; the rest of a node is for KV."""
    share = weights * device.gpus_per_node / GPUS
    most = NODE_BYTES - KV_BYTES * device.gpus_per_node
    host = point.host_bytes or max(share, min(weights, most)) * _SPARE
    kv = device.host_kv_bytes if point.host_bytes else (NODE_BYTES - host) / device.gpus_per_node
    return replace(device, host_cache_bytes=int(host), host_kv_bytes=int(kv), disk_bytes_per_s=NVME)


def attained(point: Point, seed: int, seconds: float) -> tuple[Attainment, int]:
    """What one run attains, and how many of its requests were refused."""
    run = run_of(point, seed, seconds)
    outcome = simulate(run)
    return outcome.attainment(run.settings.slo), sum(one.refused for one in outcome.requests)


def rows(name: str, shares: Sequence[Attainment], refused: int) -> list[Row]:
    """The means, and the worst seed of what the bar is about."""
    point, count = POINTS[name], len(shares)
    what = f"{point.models} models, {point.device}, {name.lstrip('H')}"
    return [
        Row(f"{what}: tokens on time", sum(a.token for a in shares) / count, "share", BAR),
        Row(f"{what}: worst seed", min(a.token for a in shares), "share"),
        Row(f"{what}: request", sum(a.request for a in shares) / count, "share"),
        Row(f"{what}: time", sum(a.time for a in shares) / count, "share"),
        Row(f"{what}: requests refused, since they waited for `hold` and their objective", refused, "requests"),
    ]


def points(about: str | None, names: Sequence[str], seeds: str, seconds: float) -> argparse.Namespace:
    """Which points, seeds and seconds the command line asks for; by default these."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("points", nargs="*", choices=[[], *names], metavar="POINT")
    parser.add_argument("--seeds", default=seeds)
    parser.add_argument("--seconds", type=float, default=seconds)
    chosen = read_settings(parser)
    chosen.points = chosen.points or names
    return chosen


def by_point(
    chosen: argparse.Namespace, measure: Callable[[Point, int, float], Found]
) -> Iterator[tuple[str, dict[int, Found]]]:
    """What `measure` finds for each of these points and seeds."""
    each = [int(seed) for seed in chosen.seeds.split(",")]
    with processes(PROCESSES) as pool:
        runs = {
            name: {seed: pool.submit(measure, POINTS[name], seed, chosen.seconds) for seed in each}
            for name in chosen.points
        }
        for name, futures in runs.items():
            yield name, {seed: future.result() for seed, future in futures.items()}


def main() -> int:
    """Print and keep every point's figures."""
    found: list[Row] = []
    chosen = points(__doc__, list(POINTS), "1,2,3", 300.0)
    for name, of in by_point(chosen, attained):
        shares = [share for share, _ in of.values()]
        print(name, *(f"{100 * a.token:.1f}/{100 * a.request:.1f}/{100 * a.time:.1f}" for a in shares), flush=True)
        found += rows(name, shares, sum(refused for _, refused in of.values()))
    return 0 if report("goodput", found, chosen.short) else 1


if __name__ == "__main__":
    sys.exit(main())
