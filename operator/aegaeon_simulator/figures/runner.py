"""Runs the points that the curves need on all cores; saves each result as soon as it is available."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from aegaeon_simulator.figures.cache import Cache
from aegaeon_simulator.figures.catalog import OURS, Panel
from aegaeon_simulator.figures.curves import Curve
from aegaeon_simulator.figures.measure import measure
from aegaeon_simulator.figures.points import Point
from aegaeon_simulator.parallel import cores, processes

Progress = Callable[[int, int, str], None]  # curves done, all curves, what runs
Result = dict[str, Any]


class Runner:
    """`workers` processes over points; a point that two curves share is run once."""

    def __init__(self, cache: Cache, data: Path, workers: int | None = None) -> None:
        self._cache = cache
        self._data = data
        self._workers = workers or cores()
        self._running: dict[Future[Result], Point] = {}

    def run(self, panels: list[Panel], seeds: int, progress: Progress) -> list[Curve]:
        """Every curve of these panels, in their order. Raises what a point raises."""
        curves = [Curve(panel, policy, panel.seeds(seeds)) for panel in panels for policy in panel.policies]
        left = sorted(curves, key=lambda c: c.policy != OURS)  # the dear ones first
        with processes(self._workers) as pool:
            try:
                while left := [c for c in left if self._advance(c, pool)]:
                    progress(len(curves) - len(left), len(curves), self._doing())
                    self._collect()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        progress(len(curves), len(curves), "")
        return curves

    def _advance(self, curve: Curve, pool: ProcessPoolExecutor) -> bool:
        """Take cached results and start missing runs while workers are free; returns True while results are missing."""
        while (load := curve.next_load()) is not None:
            points = curve.points(load)
            cached = [self._cache.get(point) for point in points]
            known = [result for result in cached if result is not None]
            if len(known) < len(points):
                self._start([p for p, result in zip(points, cached, strict=True) if result is None], pool)
                return True
            curve.results[load] = known
        return False

    def _start(self, points: list[Point], pool: ProcessPoolExecutor) -> None:
        for point in points:
            if len(self._running) < self._workers and point not in self._running.values():
                self._running[pool.submit(measure, point, self._data)] = point

    def _collect(self) -> None:
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in done:
            point = self._running.pop(future)
            self._cache.put(point, future.result())

    def _doing(self) -> str:
        return ", ".join(sorted({point.policy for point in self._running.values()}))
