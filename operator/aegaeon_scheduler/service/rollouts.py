"""Names that are to stand for another model: it is prepared beside the one that is served, and takes its place when
that has answered what it was asked. Of no sequence is a part computed by one and the rest by the other.

What engines have outlives the scheduler, so one that has just started lets what runs end as well: see `attached`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from aegaeon_proto.v1 import engine_pb2, model_pb2
from aegaeon_scheduler.service.catalog import Catalog
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.identity import objectives_of

_log = logging.getLogger(__name__)

DRAIN_S = 60.0  # for what runs when a scheduler starts: how long that may take is not known to it
REATTACH_GRACE_S = 10.0  # so long after the first peer has come, those that outlived an earlier scheduler may attach
_CACHED, _FAILED = model_pb2.MODEL_PHASE_CACHED, model_pb2.MODEL_PHASE_FAILED


@dataclass(slots=True)
class Rollout:
    """`ends`: until when, at most, the former one answers what it was asked; None while the new one is prepared."""

    spec: model_pb2.ModelSpec
    drain_s: float
    ends: float | None = None


class Rollouts:
    """Owner of the changes that are under way, by served name."""

    def __init__(self, catalog: Catalog, driver: Driver) -> None:
        self._catalog = catalog
        self._driver = driver
        self._rollouts: dict[str, Rollout] = {}
        self._reattach_deadline: float | None = None

    def __len__(self) -> int:
        return len(self._rollouts)

    @property
    def reattach_grace_over(self) -> bool:
        """True when engines that outlived an earlier scheduler have had time to report their models, and gateways their
        open requests: before, requests of an idle model may still come."""
        now = self._driver.clock()
        if self._reattach_deadline is None:
            self._reattach_deadline = now + REATTACH_GRACE_S
        return now >= self._reattach_deadline

    def target(self, name: str) -> model_pb2.ModelSpec | None:
        """The model that the name will stand for, if that is another one."""
        rollout = self._rollouts.get(name)
        return rollout.spec if rollout else None

    def begin(self, spec: model_pb2.ModelSpec, drain_s: float, at_once: bool = False) -> None:
        """Prepare what a name is to stand for; `at_once`: the one that is served is to take nothing new from now on."""
        rollout = self._rollouts.get(spec.name)
        if rollout is None or rollout.spec.identity != spec.identity:
            _log.info("model %s changes: preparing the new version", spec.name)
            self._catalog.stage(spec)
            rollout = None
        self._rollouts[spec.name] = Rollout(spec, drain_s, rollout.ends if rollout else None)
        if at_once:
            self._drain(spec.name, self._rollouts[spec.name])

    def stop(self, name: str) -> None:
        """The name goes on standing for what it does. Idempotent."""
        if self._rollouts.pop(name, None) is not None:
            self._catalog.unstage(name)

    def step(self) -> bool:
        """Carry on with every change as far as may be; whether engines need the new catalog."""
        due = [name for name, rollout in self._rollouts.items() if self._is_due(name, rollout)]
        for name in due:
            self._switch(name)
        return bool(due)

    def attached(self, hello: engine_pb2.Hello) -> bool:
        """An engine has come; whether the catalog has changed. What it runs under a name, and got from an earlier
        scheduler, is what the name stands for until that is answered."""
        if self.reattach_grace_over:
            return False
        running = {state.model for state in hello.models if state.phase == _CACHED}
        running |= {held.model for held in hello.held}
        changed = [self._found(spec) for spec in hello.catalog if spec.name in running and spec.identity]
        return any(changed)

    def refused(self) -> Iterator[tuple[str, str]]:
        """Names of which no engine can prepare what they are to stand for, and why."""
        for name, rollout in self._rollouts.items():
            states = self._catalog.staged(name)
            if rollout.ends is None and self._all_reported(name) and all(s.phase == _FAILED for s in states.values()):
                reason = next(iter(states.values())).reason
                yield name, f"the new version cannot be served, the old one stays in use: {reason}"

    def changing(self) -> Iterator[tuple[str, str]]:
        """The other names, and how far they are."""
        refused = dict(self.refused())
        for name, rollout in self._rollouts.items():
            if rollout.ends is not None:
                yield name, "requests of the former one are being answered, new ones wait"
            elif name not in refused:
                ready = sum(state.phase == _CACHED for state in self._catalog.staged(name).values())
                of = f"{ready} of {len(self._driver.instances)} engines"
                yield name, f"the change is being prepared, {of} have it; the former one is served"

    def _is_due(self, name: str, rollout: Rollout) -> bool:
        """True when the new model can take the name."""
        if rollout.ends is None:
            if not self._serves(name):
                return True
            if not (self.reattach_grace_over and self._prepared(name)):
                return False
            self._drain(name, rollout)
        assert rollout.ends is not None
        return self._driver.clock() >= rollout.ends or not self._driver.sequences.any_of_model(name)

    def _serves(self, name: str) -> bool:
        """True when the old model is in use: on an engine, or by a request."""
        return self._is_cached(name) or self._driver.sequences.any_of_model(name)

    def _has_answered(self, name: str) -> bool:
        """True when the catalog's model is, or was, on an engine. Requests do not show it: gateways ask for what a new
        scheduler says, before its engines are there, and ask anew when that was too early."""
        return self._is_cached(name) or self._driver.sequences.any_begun(name)

    def _is_cached(self, name: str) -> bool:
        return self._catalog.model(name).phase == _CACHED

    def _all_reported(self, name: str) -> bool:
        """True when every engine has reported success or failure."""
        states = self._catalog.staged(name)
        return bool(states) and all(
            instance in states and states[instance].phase in (_CACHED, _FAILED) for instance in self._driver.instances
        )

    def _prepared(self, name: str) -> bool:
        cached = any(state.phase == _CACHED for state in self._catalog.staged(name).values())
        return cached and self._all_reported(name)

    def _drain(self, name: str, rollout: Rollout) -> None:
        _log.info("model %s changes: new requests wait until earlier ones are answered", name)
        rollout.ends = self._driver.clock() + rollout.drain_s
        self._catalog.hold(name)

    def _switch(self, name: str) -> None:
        _log.info("model %s has changed", name)
        spec = self._rollouts.pop(name).spec
        self._catalog.unstage(name)
        self._catalog.put(spec)
        self._driver.handle(self._catalog.event())

    def _found(self, spec: model_pb2.ModelSpec) -> bool:
        """An engine runs this. Whether that changes anything."""
        known, rollout = self._catalog.specs.get(spec.name), self._rollouts.get(spec.name)
        if known is None or spec.identity == known.identity:
            return False
        if rollout is not None:
            further = spec.identity == rollout.spec.identity  # the earlier scheduler had got so far
            if further:
                self._switch(spec.name)
            return further
        if self._has_answered(spec.name):
            return False
        self._catalog.put(objectives_of(spec, known))
        self._driver.handle(self._catalog.event())
        self.begin(known, DRAIN_S)
        return True
