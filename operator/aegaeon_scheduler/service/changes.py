"""The catalog while it is served: what a new list changes, each model by itself, and the end of those not on it.

A withdrawn model takes no new requests at once; the core and the sidecars keep it until what it was asked before has
ended, or the time for that is over. A name that is to stand for another model is changed by `Rollouts`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from aegaeon_proto.v1 import admin_pb2, engine_pb2, model_pb2
from aegaeon_scheduler.core.domain import InstanceId
from aegaeon_scheduler.core.events import EnginesExpected, StartHoldChanged
from aegaeon_scheduler.service.catalog import Catalog
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.identity import identified, objectives_of
from aegaeon_scheduler.service.rollouts import Rollouts

# How often it is looked whether the last request of a model that is withdrawn, or changes, has ended.
_LOOK_S = 0.1


class CatalogChanges:
    """Carries lists into the catalog, the core and, by `tell_engines`, the sidecars; gateways see them there.

    `tell_engines` is called with whether the operator asks for models that failed, with what their files hold now.
    """

    def __init__(
        self, catalog: Catalog, driver: Driver, tell_engines: Callable[[bool], None], start_s: float = 0.0
    ) -> None:
        self.rollouts = Rollouts(catalog, driver)
        self._catalog = catalog
        self._driver = driver
        self._tell_engines = tell_engines
        self.start_s = start_s
        self._engines: tuple[InstanceId, ...] | None = None
        self._refused: dict[str, str] = {}
        self._ends: dict[str, float] = {}  # of withdrawn models, on the driver's clock
        self._timer: asyncio.TimerHandle | None = None

    def set(self, request: admin_pb2.SetCatalogRequest) -> admin_pb2.SetCatalogReply:
        """Apply the complete list. A refused entry leaves its name unchanged."""
        if request.HasField("start_s") and request.start_s != self.start_s:
            self.start_s = max(request.start_s, 0.0)
            self._driver.handle(StartHoldChanged(self.start_s))
        engines = tuple(map(InstanceId, request.engines.instances)) if request.HasField("engines") else None
        if engines != self._engines:
            self._engines = engines
            self._driver.handle(EnginesExpected(engines))
        accepted, self._refused = _checked(request.models)
        drain_s = max(request.drain_s, 0.0)
        reply = admin_pb2.SetCatalogReply(refused=_notes(self._refused))
        for spec in accepted.values():
            self._take(spec, drain_s, reply)
        listed, leaving = accepted.keys() | self._refused.keys(), self._catalog.withdrawing
        reply.removed.extend(name for name in self._catalog.specs if name not in listed and name not in leaving)
        for name in reply.removed:
            self._withdraw(name, drain_s)
        switched = self.rollouts.step()
        if switched or reply.added or reply.changed or request.retry:
            self._tell(request.retry)
        self._look()
        return reply

    def attached(self, hello: engine_pb2.Hello) -> None:
        """A sidecar has come, and has not got the catalog yet: what it runs may be what a name stands for."""
        if self.rollouts.attached(hello):
            self._tell_engines(False)
            self._arm()  # what it says of its models comes first

    def refused(self) -> list[admin_pb2.ModelNote]:
        """Requested models that cannot be served, for the operator of the pool."""
        return _notes({**self._refused, **dict(self.rollouts.refused())})

    def changing(self) -> list[admin_pb2.ModelNote]:
        """Changes under way."""
        return _notes(dict(self.rollouts.changing()))

    def stop(self) -> None:
        """Withdrawn models stay as they are."""
        if self._timer is not None:
            self._timer.cancel()

    def _take(self, spec: model_pb2.ModelSpec, drain_s: float, reply: admin_pb2.SetCatalogReply) -> None:
        """One model of the list."""
        name, known = spec.name, self._catalog.specs.get(spec.name)
        if known is None:
            self._catalog.put(spec)
            reply.added.append(name)
            return
        back = name in self._catalog.withdrawing
        if spec == (self.rollouts.target(name) or known) and not back:
            return
        self._ends.pop(name, None)
        self._catalog.put(objectives_of(known, spec))
        if spec.identity == known.identity:
            self.rollouts.stop(name)
            self._catalog.put(spec)
        else:
            self.rollouts.begin(spec, drain_s, at_once=back)
        (reply.added if back else reply.changed).append(name)

    def _withdraw(self, name: str, drain_s: float) -> None:
        self.rollouts.stop(name)
        self._catalog.withdraw(name)
        self._ends[name] = self._driver.clock() + drain_s

    def _look(self) -> None:
        """Drop the withdrawn models that have answered everything, or whose time is over; carry on with changes."""
        now = self._driver.clock()
        over = [n for n, end in self._ends.items() if now >= end or not self._driver.sequences.any_of_model(n)]
        for name in over:
            self._catalog.drop(name)
            del self._ends[name]
        if over:
            self._driver.handle(self._catalog.event())
        if self.rollouts.step() or over:
            self._tell_engines(False)
        self._arm()

    def _arm(self) -> None:
        self.stop()
        if self._ends or self.rollouts:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _tell(self, retry: bool) -> None:
        self._driver.handle(self._catalog.event())
        self._tell_engines(retry)


def _notes(reasons: dict[str, str]) -> list[admin_pb2.ModelNote]:
    return [admin_pb2.ModelNote(model=name, reason=reason) for name, reason in reasons.items()]


def _checked(models: Iterable[model_pb2.ModelSpec]) -> tuple[dict[str, model_pb2.ModelSpec], dict[str, str]]:
    """Valid specs by name, and the reasons why the others are invalid."""
    specs: dict[str, model_pb2.ModelSpec] = {}
    refused: dict[str, str] = {}
    for spec in models:
        if spec.name in specs:
            refused[spec.name] = f"model {spec.name} is listed more than once; served names must be unique"
        elif problem := _problem(spec):
            refused[spec.name] = problem
        else:
            spec.weight = spec.weight or 1
            specs[spec.name] = identified(spec)
    specs = {name: spec for name, spec in specs.items() if name not in refused}
    return specs, refused | _without_wrong_adapters(specs)


def _without_wrong_adapters(specs: dict[str, model_pb2.ModelSpec]) -> dict[str, str]:
    """Take adapters that make no sense off their models; why, by names of their own."""
    taken, refused = set(specs), dict[str, str]()
    for spec in specs.values():
        kept = []
        for adapter in spec.adapters:
            if adapter.name in taken or not adapter.name:
                refused[f"{spec.name}/{adapter.name}"] = f"adapter {adapter.name} of {spec.name}: its name is taken"
            elif adapter.source.WhichOneof("kind") is None:
                refused[adapter.name] = f"adapter {adapter.name}: has no source that this version knows"
            else:
                kept.append(adapter)
                taken.add(adapter.name)
        if len(kept) != len(spec.adapters):
            sound = model_pb2.ModelSpec(adapters=kept)
            del spec.adapters[:]
            spec.adapters.extend(sound.adapters)
    return refused


def _problem(spec: model_pb2.ModelSpec) -> str:
    """The reason why an entry cannot be served; empty without one."""
    if not spec.name:
        return "a model without a name"
    if spec.source.WhichOneof("kind") is None:
        return f"model {spec.name}: has no source that this version knows"
    if not (0 < spec.ttft_s < math.inf and 0 < spec.tbt_s < math.inf):
        return f"model {spec.name}: ttft_s and tbt_s must be seconds, above 0"
    return ""
