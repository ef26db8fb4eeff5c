"""Evaluates pools on the same arrivals: each pool is simulated once per seed, and the result is cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.devices import Device
from aegaeon_simulator.plan.demand import Traffic
from aegaeon_simulator.plan.errors import PlanError
from aegaeon_simulator.plan.measure import Form, Sample, Share, Trial, estimate, sample
from aegaeon_simulator.plan.parts import Parts, parts_of, ratio
from aegaeon_simulator.run import Run
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Workload

Trials = Callable[[Sequence[Trial]], list[Sample]]
Reshape = Callable[[Workload], Workload]


def one_by_one(trials: Sequence[Trial]) -> list[Sample]:
    """Run trials in this process."""
    return [sample(trial) for trial in trials]


@dataclass(frozen=True, slots=True)
class Objective:
    """The target: this share of tokens (requests, time) within `slo`, or the model's own, at this one-sided
    confidence."""

    slo: Slo
    share: float = 0.9
    form: Form = "token"
    confidence: float = 0.95

    def check(self) -> None:
        """Raises PlanError."""
        if not (self.slo.ttft_s > 0 and self.slo.tbt_s > 0):
            raise PlanError(
                f"the objective is TTFT {self.slo.ttft_s:g} s, TBT {self.slo.tbt_s:g} s; both must be more than 0"
            )
        if not 0 < self.share < 1:
            raise PlanError(f"the attainment is {self.share:g}; it must be a share between 0 and 1, such as 0.9")
        if not 0.5 < self.confidence < 1:
            raise PlanError(
                f"the confidence is {self.confidence:g}; it must be a share between 0.5 and 1, such as 0.95"
            )


@dataclass(frozen=True, slots=True)
class Point:
    """One pool's result. `models`: each model's share, None when it received no request; `busy_s` its GPU-seconds;
    `parts`: shares by class of objective and by tenant, and of the models that are served worst."""

    policy: str
    split: Split
    share: Share
    models: tuple[float | None, ...]
    busy_s: tuple[float, ...]
    busy_share: float
    tokens: int
    parts: Parts

    @property
    def gpus(self) -> int:
        """Devices of the pool."""
        return self.split.total


@dataclass
class PoolEvaluator:
    """Traffic, device and objective of one question; `trials` runs simulations, here or in other processes."""

    traffic: Traffic
    device: Device
    objective: Objective
    seeds: int = 2
    trials: Trials = one_by_one
    progress: Callable[[str], None] = lambda what: None
    _draws: list[Workload] = field(default_factory=list)
    _known: dict[tuple[str, Split, tuple[int, ...]], Point] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.objective.check()
        if self.seeds < 1:
            raise PlanError(f"{self.seeds} seeds: at least one run is needed")
        for kind in {m.kind for m in self.traffic.models}:
            self.device.kind(kind)
        count = self.seeds if self.traffic.random else 1
        self._draws = [self.traffic.draw(seed) for seed in range(count)]

    def point(self, policy: str, split: Split, reshape: Reshape | None = None, shape: tuple[int, ...] = ()) -> Point:
        """Evaluate the pool on every draw. `reshape` makes copies of models, `shape` gives the number of each."""
        key = (policy, split, shape)
        if key not in self._known:
            self.progress(f"{policy} on {in_words(split)}")
            shaped = [reshape(draw) if reshape else draw for draw in self._draws]
            slos = self._slos(shape)
            trials = [self._trial(policy, split, w, slos) for w in shaped]
            self._known[key] = self._estimate(policy, split, trials, slos)
        return self._known[key]

    def points(self, policy: str) -> list[Point]:
        """All pools without roles evaluated under this policy, by size."""
        evaluated = (p for (name, s, shape), p in self._known.items() if name == policy and s.unified and not shape)
        return sorted(evaluated, key=lambda p: p.gpus)

    def sessions(self) -> int:
        """Sessions of the first draw, whose requests wait for the answer before them."""
        return len({a.session for a in self._draws[0].arrivals if a.session})

    def suffices(self, point: Point) -> bool:
        """True when the objective is met at its confidence."""
        return point.share.low >= self.objective.share

    def _slos(self, copies: tuple[int, ...]) -> tuple[Slo, ...]:
        """The objectives of all models, or of `copies` of each."""
        own = [model.slo or self.objective.slo for model in self.traffic.models]
        return tuple(slo for slo, count in zip(own, copies or (1,) * len(own), strict=True) for _ in range(count))

    def _trial(self, policy: str, split: Split, workload: Workload, slos: tuple[Slo, ...]) -> Trial:
        longest = max((a.output_tokens for a in workload.arrivals), default=1)
        drain_s = max(slo.ttft_s + longest * slo.tbt_s for slo in slos)  # what comes later is late anyway
        settings = Settings(policy, split, self.objective.slo, drain_s, slos=slos)
        return Trial(Run(settings, workload, self.device), self.objective.form, self.traffic.window_s)

    def _estimate(self, policy: str, split: Split, trials: list[Trial], slos: tuple[Slo, ...]) -> Point:
        samples = self.trials(trials)
        share = estimate([s for each in samples for s in each.slices], self.objective.confidence)
        if share is None:
            raise PlanError(f"no request arrives in the window of {self.traffic.window_s:g} s; use a longer --window")
        models = zip(*(each.models for each in samples), strict=True)
        busy = zip(*(each.busy_s for each in samples), strict=True)
        return Point(
            policy, split, share,
            tuple(ratio(pairs) for pairs in models),
            tuple(sum(parts) / len(samples) for parts in busy),
            sum(each.busy_share for each in samples) / len(samples),
            round(sum(each.tokens for each in samples) / len(samples)),
            parts_of(samples, slos),
        )  # fmt: skip


def in_words(split: Split) -> str:
    """The split in words."""
    roles = ((split.unified, "unified"), (split.prefill, "prefill"), (split.decode, "decode"))
    return " + ".join(f"{count} {name}" for count, name in roles if count)
