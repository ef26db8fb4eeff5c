"""Where the bytes of a load come from: the host cache, or the model's files by way of the stage ring."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aegaeon_sidecar.errors import CacheFullError, CancelledError, EngineError, FillCancelledError, ModelError
from aegaeon_sidecar.models.fill import fill, identity
from aegaeon_sidecar.state import Command, State
from aegaeon_sidecar.weights.cache import Fill, HostCache
from aegaeon_sidecar.weights.image import Image
from aegaeon_sidecar.weights.models import Model
from aegaeon_sidecar.weights.ring import NO_FILE, StageRing

log = logging.getLogger(__name__)


class Images:
    """Asked by the weights lane's thread for registered models."""

    def __init__(self, state: State, cache: HostCache, ring: StageRing, report: Callable[[Model], None]) -> None:
        """`ring`: of the device. `report` is called when the content of a model has become known, lock held."""
        self._report = report
        self._state = state
        self._cache = cache
        self._ring = ring

    def image(self, command: Command, model: Model, past_host: bool) -> Image | None:
        """What is to be copied to the slabs, pinned. None: nothing, `stream` reads the files into them.

        They are not read into the slabs of several ranks: what the host cache lacks is brought into it first. With
        `past_host` nothing is evicted that the catalog names. Raises EngineError, CancelledError.
        """
        image, layout = self._pinned(model), model.layout
        assert layout is not None  # it is registered
        if image is not None or layout.ranks == 1:
            return image
        with _as_engine_error(model):
            found = self._cache.obtain(
                identity(layout),
                layout.image_bytes,
                self._reader(command, model, to_slabs=False),
                give_up=self._gives_up(command, model),
                spare=self._spared(past_host),
            )
        return self._adopt(model, found)

    def _pinned(self, model: Model) -> Image | None:
        """The host cache's copy, ours or one that another sidecar made since ours was evicted. Raises EngineError."""
        with self._state.changed:
            if model.image is not None and (model.pinned or model.image.pin()):
                model.pinned = True
                return model.image
            model.drop_image()
        layout = model.layout
        assert layout is not None  # it is registered
        with _as_engine_error(model):
            image = self._cache.find(identity(layout), layout.image_bytes)
        return self._adopt(model, image)

    def stream(self, command: Command, model: Model, past_host: bool) -> None:
        """From the files into the slabs and, where others may be evicted for it, into the host cache on the way.

        With `past_host` nothing is evicted that the catalog names. Raises EngineError, CancelledError.
        """
        layout, read = model.layout, self._reader(command, model, to_slabs=True)
        assert layout is not None  # it is registered
        with _as_engine_error(model):
            try:
                draft = self._cache.draft(identity(layout), layout.image_bytes, spare=self._spared(past_host))
                if draft is not None:
                    self._adopt(model, self._cache.complete(draft, read))
                    return
            except CacheFullError as error:  # or others have filled the file system since the draft was made
                log.info("a load goes past the host cache: %s", error)
            read(NO_FILE)

    def _reader(self, command: Command, model: Model, *, to_slabs: bool) -> Fill:
        """Reads the model's files into the file it is called with, or NO_FILE, and, with `to_slabs`, into its slabs."""
        located, layout, weights, on_gpu = model.located, model.layout, model.range, self._ring.gpu is not None
        assert located is not None  # it is registered
        assert layout is not None
        assert weights is not None

        def read(file: int) -> str:
            return fill(
                located.directory,
                layout,
                [weights.view(0, layout.weight_bytes)] if to_slabs and not on_gpu else [],
                self._ring,
                on_device=weights.address if to_slabs and on_gpu else 0,
                into_file=file,
                hashed=file != NO_FILE,
                cancelled=self._gives_up(command, model),
            )

        return read

    def _gives_up(self, command: Command, model: Model) -> Callable[[], bool]:
        return lambda: command.cancelled or model.forgotten or self._state.stopping

    def _spared(self, past_host: bool) -> set[str]:
        """Contents that may not be evicted for it."""
        with self._state.changed:
            return {model.content for model in self._state.models.values()} if past_host else set()

    def _adopt(self, model: Model, image: Image | None) -> Image | None:
        with self._state.changed:
            model.image, model.pinned = image, image is not None
            if image is not None and model.content != image.content:
                model.content = image.content
                self._report(model)
        return image


@contextmanager
def _as_engine_error(model: Model) -> Iterator[None]:
    """What the files or the host cache can fail with, as what a command fails with."""
    try:
        yield
    except FillCancelledError as error:
        raise CancelledError(f"the load of {model.name} was cancelled") from error
    except (ModelError, CacheFullError, OSError) as error:
        raise EngineError(f"{model.name}: {error}") from error
