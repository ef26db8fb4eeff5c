"""The catalog while it is served: what a new list changes, and the end of models that are not on it.

A withdrawn model takes no new requests at once; the core and the sidecars keep it until what it was asked before has
ended, or the time for that is over.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from aegaeon_proto.v1 import admin_pb2, model_pb2
from aegaeon_scheduler.errors import RefusedError, RequestError
from aegaeon_scheduler.service.catalog import Catalog
from aegaeon_scheduler.service.driver import Driver

# How often it is looked whether the last request of a withdrawn model has ended.
_LOOK_S = 0.1


class CatalogChanges:
    """Carries lists into the catalog, the core and, by `tell_engines`, the sidecars; gateways hear by themselves.

    `tell_engines` is called with whether somebody asks for models that failed, with what their files hold now.
    """

    def __init__(self, catalog: Catalog, driver: Driver, tell_engines: Callable[[bool], None]) -> None:
        self._catalog = catalog
        self._driver = driver
        self._tell_engines = tell_engines
        self._ends: dict[str, float] = {}  # of withdrawn models, on the driver's clock
        self._timer: asyncio.TimerHandle | None = None

    def set(self, request: admin_pb2.SetCatalogRequest) -> admin_pb2.SetCatalogReply:
        """The whole list. Raises RequestError or RefusedError, and has changed nothing then."""
        wanted = _checked(request.models)
        reply = self._compare(wanted)
        replaced = [name for name in reply.changed if not _same_files(wanted[name], self._catalog.specs[name])]
        if replaced:
            self._drop(replaced)  # to the core it is another model
        for name in (*reply.added, *reply.changed):
            self._catalog.put(wanted[name])
            self._ends.pop(name, None)
        self._withdraw(reply.removed, max(request.drain_s, 0.0))
        if reply.added or reply.changed or request.retry:
            self._tell(request.retry)
        return reply

    def stop(self) -> None:
        """Withdrawn models stay as they are."""
        if self._timer is not None:
            self._timer.cancel()

    def _compare(self, wanted: dict[str, model_pb2.ModelSpec]) -> admin_pb2.SetCatalogReply:
        known, leaving = self._catalog.specs, self._catalog.withdrawing
        for name in wanted.keys() & known.keys():
            self._refuse_other_files(wanted[name], known[name])
        return admin_pb2.SetCatalogReply(
            added=[name for name in wanted if name not in known or name in leaving],
            changed=[n for n, spec in wanted.items() if n in known and n not in leaving and spec != known[n]],
            removed=[name for name in known if name not in wanted and name not in leaving],
        )

    def _refuse_other_files(self, wanted: model_pb2.ModelSpec, known: model_pb2.ModelSpec) -> None:
        """Requests that run, and KV caches, are of the files that are served. Raises RefusedError."""
        if _same_files(wanted, known):
            return
        name = known.name
        if name in self._catalog.withdrawing:
            raise RefusedError(f"model {name} still ends its requests with other files; try again when they have ended")
        if self._catalog.model(name).phase == model_pb2.MODEL_PHASE_FAILED:
            return
        what = "source" if wanted.source != known.source else "max_model_len"
        raise RefusedError(
            f"the {what} of model {name} cannot change while it is served; remove the model and add it again, or give "
            "the other one another name"
        )

    def _withdraw(self, names: Iterable[str], drain_s: float) -> None:
        for name in names:
            self._catalog.withdraw(name)
            self._ends[name] = self._driver.clock() + drain_s
        self._look()

    def _look(self) -> None:
        """Drop the withdrawn models that have answered everything, or whose time is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._driver.clock()
        over = [n for n, end in self._ends.items() if now >= end or not self._driver.sequences.any_of_model(n)]
        if over:
            self._drop(over)
            self._tell_engines(False)
        if self._ends:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._catalog.drop(name)
            self._ends.pop(name, None)
        self._driver.handle(self._catalog.event())

    def _tell(self, retry: bool) -> None:
        self._driver.handle(self._catalog.event())
        self._tell_engines(retry)


def _checked(models: Iterable[model_pb2.ModelSpec]) -> dict[str, model_pb2.ModelSpec]:
    """By name. Raises RequestError for an entry that cannot be served."""
    specs: dict[str, model_pb2.ModelSpec] = {}
    for spec in models:
        if not spec.name:
            raise RequestError("a model without a name")
        if spec.name in specs:
            raise RequestError(f"model {spec.name} is listed more than once; served names must be unique")
        if spec.source.WhichOneof("kind") is None:
            raise RequestError(f"model {spec.name}: has no source that this version knows")
        if not (0 < spec.ttft_s < math.inf and 0 < spec.tbt_s < math.inf):
            raise RequestError(f"model {spec.name}: ttft_s and tbt_s must be seconds, above 0")
        spec.weight = spec.weight or 1
        specs[spec.name] = spec
    return specs


def _same_files(one: model_pb2.ModelSpec, other: model_pb2.ModelSpec) -> bool:
    return one.source == other.source and one.max_model_len == other.max_model_len
