"""Load and Unload: slabs into a model's permanent range, its image copied in, and out again. Nothing is re-pointed."""

from __future__ import annotations

import time

from aegaeon_native import NativeError, OutOfSlabs, Range
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.copying import Copier
from aegaeon_sidecar.errors import CancelledError, EngineError, NoMemoryError, UnknownError
from aegaeon_sidecar.outcome import Outcome
from aegaeon_sidecar.state import Command, State
from aegaeon_sidecar.weights.cache import Image
from aegaeon_sidecar.weights.models import Model


class Residency:
    """The weights lane. Its methods run on that lane's thread."""

    def __init__(self, state: State, copier: Copier) -> None:
        self._state = state
        self._copier = copier

    def load(self, command: Command, load: pb.Load) -> Outcome:
        """Make a cached model resident with at most `load.slabs` slabs; nothing happens when it is already.

        Raises UnknownError, NoMemoryError (nothing changed), CancelledError (its slabs are given back).
        """
        with self._state.changed:
            model = self._cached(load.model)
            if model.resident:
                return Outcome()
            begin = time.monotonic()
            weights, image = self._map(model, load.slabs)
            mapped = time.monotonic()
        self._copier.copy(command, weights.address, image.address, image.nbytes)
        self._copier.finish()
        model.map_s, model.copy_s = mapped - begin, time.monotonic() - mapped
        with self._state.changed:
            model.loading = False
            if command.cancelled or model.forgotten:
                self._give_back(model, weights)
                raise CancelledError(f"the load of {model.name} was cancelled")
            model.resident = True
        return Outcome(nbytes=image.nbytes)

    def unload(self, command: Command, unload: pb.Unload) -> Outcome:
        """Give a model's slabs back after the last step that uses them. Nothing happens when it is not resident."""
        with self._state.changed:
            model = self._cached(unload.model)
            if not model.resident or model.range is None:
                return Outcome()
            model.leaving = True
            free = self._state.wait(lambda: model.users == 0, command)
            model.leaving = False
            if not free:
                raise CancelledError(f"the unload of {model.name} was cancelled")
            self._give_back(model, model.range)
        return Outcome()

    def _cached(self, name: str) -> Model:
        model = self._state.models.get(name)
        if model is None or model.range is None or model.image is None:
            phase = "not in the catalog" if model is None else f"not in the host cache ({model.reason or 'on its way'})"
            raise UnknownError(f"model {name} is {phase}")
        return model

    def _map(self, model: Model, grant: int) -> tuple[Range, Image]:
        weights, image = model.range, model.image
        assert weights is not None  # `_cached` has seen to it
        assert image is not None
        if weights.slabs > grant:
            raise NoMemoryError(f"{model.name} takes {weights.slabs} slabs, {grant} were granted")
        try:
            slabs = self._state.device.pool.take(weights.slabs)
        except OutOfSlabs as error:
            raise NoMemoryError(f"{model.name} takes {weights.slabs} slabs: {error}") from error
        try:
            weights.map(0, slabs)
        except NativeError as error:
            self._state.device.pool.give(slabs)
            raise EngineError(f"{model.name} could not be mapped: {error}") from error
        model.mapped_slabs, model.loading = len(slabs), True
        return weights, image

    def _give_back(self, model: Model, weights: Range) -> None:
        model.resident = False
        self._state.device.pool.give(weights.unmap(0, model.mapped_slabs))
        model.mapped_slabs = 0
        self._state.changed.notify_all()
