"""Load and Unload: slabs into a model's permanent range, its bytes copied in, and out again. Nothing is re-pointed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aegaeon_native import NativeError, OutOfSlabs, Range
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.backends import Layout
from aegaeon_sidecar.copying import Copier
from aegaeon_sidecar.errors import (
    CacheFullError,
    CancelledError,
    EngineError,
    FillCancelledError,
    ModelError,
    NoMemoryError,
    UnknownError,
)
from aegaeon_sidecar.models.fill import fill, identity
from aegaeon_sidecar.outcome import Outcome
from aegaeon_sidecar.state import Command, State
from aegaeon_sidecar.weights.cache import Draft, HostCache, Image
from aegaeon_sidecar.weights.models import Model
from aegaeon_sidecar.weights.pins import settle_pins
from aegaeon_sidecar.weights.ring import StageRing

log = logging.getLogger(__name__)


class Residency:
    """The weights lane. Its methods run on that lane's thread."""

    def __init__(self, state: State, copier: Copier, cache: HostCache, ring: StageRing) -> None:
        self._state = state
        self._copier = copier
        self._cache = cache
        self._ring = ring

    def load(self, command: Command, load: pb.Load) -> Outcome:
        """Make a model resident with at most `load.slabs` slabs; nothing happens when it is already.

        From the host cache it is one copy; what is not there is read from its files by way of the stage ring. Raises
        UnknownError, NoMemoryError (nothing changed), CancelledError, EngineError (its slabs are given back).
        """
        with self._state.changed:
            model = self._registered(load.model)
            if model.resident:
                return Outcome()
            begin = time.monotonic()
            weights, layout = self._map(model, load.slabs)
        try:
            image = self._pinned_image(model, layout)
            mapped = time.monotonic()
            if image is not None:
                self._copy(command, weights, image)
            else:
                self._stream(command, model, weights, layout)
            model.map_s, model.copy_s = mapped - begin, time.monotonic() - mapped
            if command.cancelled or model.forgotten:
                raise CancelledError(f"the load of {model.name} was cancelled")
        except BaseException:
            self._settle(model, weights, resident=False)
            raise
        self._settle(model, weights, resident=True)
        return Outcome(nbytes=layout.weight_bytes)

    def _pinned_image(self, model: Model, layout: Layout) -> Image | None:
        """The host cache's copy, ours or one that another sidecar made since ours was evicted."""
        with self._state.changed:
            if model.image is not None and (model.pinned or model.image.pin()):
                model.pinned = True
                return model.image
            model.drop_image()
        with _as_engine_error(model):
            image = self._cache.find(identity(layout), layout.weight_bytes)
        return self._adopt(model, image)

    def _copy(self, command: Command, weights: Range, image: Image) -> None:
        self._copier.copy(command, weights.address, image.address, image.nbytes)
        self._copier.finish()

    def _stream(self, command: Command, model: Model, weights: Range, layout: Layout) -> None:
        """From the files into the slabs and, where others may be evicted for it, into the host cache on the way."""
        assert model.located is not None  # it is registered
        with _as_engine_error(model):
            draft = self._draft(layout)
            targets = [weights.view(0, layout.weight_bytes), *([draft.view] if draft else [])]
            try:
                content = fill(
                    model.located.directory,
                    layout,
                    targets,
                    self._ring,
                    hashed=draft is not None,
                    cancelled=lambda: command.cancelled or model.forgotten or self._state.stopping,
                )
            except BaseException:
                if draft is not None:
                    self._cache.discard(draft)
                raise
            if draft is not None:
                self._adopt(model, self._cache.publish(draft, content))

    def _draft(self, layout: Layout) -> Draft | None:
        try:
            return self._cache.draft(identity(layout), layout.weight_bytes)
        except CacheFullError as error:
            log.info("a load goes past the host cache: %s", error)
            return None

    def _adopt(self, model: Model, image: Image | None) -> Image | None:
        with self._state.changed:
            model.image, model.pinned = image, image is not None
            if image is not None:
                model.content = image.content
        return image

    def unload(self, command: Command, unload: pb.Unload) -> Outcome:
        """Give a model's slabs back after the last step that uses them. Nothing happens when it is not resident."""
        with self._state.changed:
            model = self._registered(unload.model)
            if not model.resident or model.range is None:
                return Outcome()
            model.leaving = True
            free = self._state.wait(lambda: model.users == 0, command)
            model.leaving = False
            if not free:
                raise CancelledError(f"the unload of {model.name} was cancelled")
            self._give_back(model, model.range)
            settle_pins(self._state)
        return Outcome()

    def _registered(self, name: str) -> Model:
        model = self._state.models.get(name)
        if model is None or model.range is None:
            phase = "not in the catalog" if model is None else f"not ready ({model.reason or 'on its way'})"
            raise UnknownError(f"model {name} is {phase}")
        return model

    def _map(self, model: Model, grant: int) -> tuple[Range, Layout]:
        weights, layout = model.range, model.layout
        assert weights is not None  # `_registered` has seen to it
        assert layout is not None
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
        return weights, layout

    def _settle(self, model: Model, weights: Range, *, resident: bool) -> None:
        with self._state.changed:
            model.loading, model.resident = False, resident
            if not resident:
                self._give_back(model, weights)
            settle_pins(self._state)

    def _give_back(self, model: Model, weights: Range) -> None:
        model.resident = False
        self._state.device.pool.give(weights.unmap(0, model.mapped_slabs))
        model.mapped_slabs = 0
        self._state.changed.notify_all()


@contextmanager
def _as_engine_error(model: Model) -> Iterator[None]:
    """What the files or the host cache can fail with, as what a command fails with."""
    try:
        yield
    except FillCancelledError as error:
        raise CancelledError(f"the load of {model.name} was cancelled") from error
    except (ModelError, OSError) as error:
        raise EngineError(f"{model.name}: {error}") from error
