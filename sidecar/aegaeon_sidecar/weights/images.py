"""Where the bytes of a load come from: the host cache, or the model's files by way of the stage ring."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aegaeon_sidecar.backends import Layout
from aegaeon_sidecar.errors import CacheFullError, CancelledError, EngineError, FillCancelledError, ModelError
from aegaeon_sidecar.models.fill import fill, identity
from aegaeon_sidecar.state import Command, State
from aegaeon_sidecar.weights.cache import Draft, HostCache
from aegaeon_sidecar.weights.image import Image
from aegaeon_sidecar.weights.models import Model
from aegaeon_sidecar.weights.ring import Bytes, StageRing

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
                lambda file: self._read(command, model, [], into_file=file),
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
        assert model.layout is not None  # it is registered
        with _as_engine_error(model):
            draft = self._draft(model.layout, past_host)
            try:
                self._read_to_slabs(command, model, model.layout, draft)
            except CacheFullError as error:  # others have filled the file system since the draft was made
                log.info("a load goes past the host cache: %s", error)
                self._read_to_slabs(command, model, model.layout, None)

    def _read_to_slabs(self, command: Command, model: Model, layout: Layout, draft: Draft | None) -> None:
        weights, on_gpu = model.range, self._ring.gpu is not None
        assert weights is not None  # it is registered
        slabs = [] if on_gpu else [weights.view(0, layout.weight_bytes)]
        address = weights.address if on_gpu else 0
        if draft is None:
            self._read(command, model, slabs, address, hashed=False)
            return
        try:
            content = self._read(command, model, slabs, address, draft.file)
        except BaseException:
            self._cache.discard(draft)
            raise
        self._adopt(model, self._cache.publish(draft, content))

    def _read(
        self,
        command: Command,
        model: Model,
        slabs: list[Bytes],
        on_device: int = 0,
        into_file: int = -1,
        hashed: bool = True,
    ) -> str:
        located, layout = model.located, model.layout
        assert located is not None  # it is registered
        assert layout is not None
        return fill(
            located.directory,
            layout,
            slabs,
            self._ring,
            on_device=on_device,
            into_file=into_file,
            hashed=hashed,
            cancelled=self._gives_up(command, model),
        )

    def _gives_up(self, command: Command, model: Model) -> Callable[[], bool]:
        return lambda: command.cancelled or model.forgotten or self._state.stopping

    def _draft(self, layout: Layout, past_host: bool) -> Draft | None:
        try:
            return self._cache.draft(identity(layout), layout.image_bytes, spare=self._spared(past_host))
        except CacheFullError as error:
            log.info("a load goes past the host cache: %s", error)
            return None

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
