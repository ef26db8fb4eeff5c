"""Policy slack where a model's first steps on an engine take time: it comes back to engines that it ran on before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.policies.slack import place
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.results.outcome import Outcome
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Lengths, poisson

FIRST_S = 0.4


def _run(monkeypatch: pytest.MonkeyPatch, weight: float, first_s: float) -> Outcome:
    monkeypatch.setattr(place, "FIRST_WEIGHT", weight)
    workload = poisson(Lengths.packaged(), models=22, rate=0.1, duration_s=40.0, seed=3)
    device = replace(read_device("h800-policy"), first_s=first_s)
    return simulate(Run(Settings("slack", Split(unified=4), Slo(3.0, 0.03)), workload, device, 3))


def _firsts(outcome: Outcome) -> int:
    return round(sum(used.first_s for used in outcome.usage) / FIRST_S)


def test_models_come_back_to_engines_that_they_ran_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _firsts(_run(monkeypatch, 3.0, FIRST_S)) < _firsts(_run(monkeypatch, 0.0, FIRST_S))


def test_it_changes_nothing_where_first_steps_take_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [[r.times for r in _run(monkeypatch, weight, 0.0).requests] for weight in (3.0, 0.0)]
    assert found[0] == found[1]
