"""The source of a load's bytes: the host cache, or the model's files through the stage ring.

Images of the host cache are trusted. Files are read without a hash only while they are unchanged since they were
verified. Changed files are read and hashed again, and other content fails the model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aegaeon_sidecar.domain.errors import (
    CacheFullError,
    CancelledError,
    EngineError,
    FilesChangedError,
    FillCancelledError,
    ModelError,
    OtherWeightsError,
    WeightsError,
)
from aegaeon_sidecar.domain.program import AnyCommand
from aegaeon_sidecar.models.weight_files import WeightFiles, look
from aegaeon_sidecar.weights.cache import Fill, HostCache
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.image import Image
from aegaeon_sidecar.weights.models import Model, Served
from aegaeon_sidecar.weights.phases import Phases
from aegaeon_sidecar.weights.ring import NO_FILE, StageRing
from aegaeon_sidecar.weights.table import ModelTable

log = logging.getLogger(__name__)


class Images:
    """Asked by the weights lane's thread for registered models."""

    def __init__(self, table: ModelTable, cache: HostCache, ring: StageRing, phases: Phases) -> None:
        """`ring`: of the device. `phases`: notified when the content of a model has become known, and when it fails."""
        self._phases = phases
        self._table = table
        self._cache = cache
        self._ring = ring

    def image(self, command: AnyCommand, model: Model, past_host: bool) -> Image | None:
        """The pinned image to copy to the slabs. None: `stream` reads the files into them instead.

        A model whose files are not read into slabs (Layout.streams) is first loaded into the host cache. With
        `past_host` no model of the catalog is evicted. Raises EngineError, CancelledError.
        """
        image, files = self._pinned(model), _files(model)
        if image is not None or files.layout.streams:
            return image
        with self._reading(model):
            image = self._cache.obtain(
                files.identity,
                files.layout.image_bytes,
                self._reader(command, model, to_slabs=False),
                give_up=self._gives_up(command, model),
                spare=self._spared(past_host),
            )
        return self._adopt(model, image)

    def _pinned(self, model: Model) -> Image | None:
        """The host cache's copy, ours or one that another sidecar made since ours was evicted. Raises EngineError."""
        with self._table.monitor.changed:
            if model.image is not None and (model.pinned or model.image.pin()):
                model.pinned = True
                return model.image
            evicted, model.image, model.pinned = model.image, None, False
        if evicted is not None:
            evicted.close()
        files = _files(model)
        try:
            image = self._cache.find(files.identity, files.layout.image_bytes)
        except OSError as error:
            raise EngineError(
                f"{model.name}: its image in the host cache cannot be opened: {error.strerror}"
            ) from error
        return self._adopt(model, image)

    def stream(self, command: AnyCommand, model: Model, past_host: bool) -> None:
        """Read the files into the slabs and, if other images may be evicted for it, into the host cache on the way.

        With `past_host` no model of the catalog is evicted. Raises EngineError, CancelledError.
        """
        files, read = _files(model), self._reader(command, model, to_slabs=True)
        with self._reading(model):
            try:
                draft = self._cache.draft(files.identity, files.layout.image_bytes, spare=self._spared(past_host))
                if draft is not None:
                    self._adopt(model, self._cache.complete(draft, read))
                    return
            except CacheFullError as error:  # or others have filled the file system since the draft was made
                log.info("a load bypasses the host cache: %s", error)
            self._know(model, read(NO_FILE))

    def _reader(self, command: AnyCommand, model: Model, *, to_slabs: bool) -> Fill:
        """Reads the model's files into the file it is called with, or NO_FILE, and, with `to_slabs`, into its slabs.

        Returns the content where it was hashed. Raises OtherWeightsError when it is not what is served.
        """
        weights, on_gpu = model.range, self._ring.gpu is not None
        assert weights is not None  # it is registered

        def bring(files: WeightFiles, file: int, hashed: bool) -> str:
            content = fill(
                files,
                [weights.view(0, files.layout.weight_bytes)] if to_slabs and not on_gpu else [],
                self._ring,
                on_device=weights.address if to_slabs and on_gpu else 0,
                into_file=file,
                hashed=hashed,
                cancelled=self._gives_up(command, model),
            )
            model.check(files, content)
            return content

        def read(file: int) -> str:
            try:
                return bring(_files(model), file, file != NO_FILE or not model.content)
            except FilesChangedError as error:
                change = error
            return self._again(model, change, lambda files: bring(files, file, True))

        return read

    def _again(self, model: Model, change: FilesChangedError, bring: Callable[[WeightFiles], str]) -> str:
        """The files are not as they were: read them once more with their hash, which says whether their bytes are."""
        known = _files(model)
        try:
            files = look(known.directory, known.layout)
            content = bring(files)
        except OtherWeightsError as error:
            raise OtherWeightsError(f"{change}; {error}") from error
        except WeightsError as error:
            raise WeightsError(f"{change}; {error}") from error
        log.info("model %s: %s; its content did not", model.name, change)
        self._cache.learn(files.identity, content)
        with self._table.monitor.changed:
            model.files = files
        return content

    def _gives_up(self, command: AnyCommand, model: Model) -> Callable[[], bool]:
        return lambda: command.cancelled or model.forgotten or self._table.monitor.stopping

    def _spared(self, past_host: bool) -> set[str]:
        """Contents that may not be evicted for it."""
        with self._table.monitor.changed:
            return {model.content for model in self._table.models.values()} if past_host else set()

    def _adopt(self, model: Model, image: Image | None) -> Image | None:
        with self._table.monitor.changed:
            model.image, model.pinned = image, image is not None
        if image is not None:
            self._know(model, image.content)
        return image

    def _know(self, model: Model, content: str) -> None:
        """The files have been read whole for the first time, or have their image in the host cache."""
        if content in ("", model.content):
            return
        with self._table.monitor.changed:
            model.content, model.served = content, Served(content, _files(model).config)
        self._phases.tell(model)

    @contextmanager
    def _reading(self, model: Model) -> Iterator[None]:
        """Errors of the files fail the model; errors of the host cache fail only the command."""
        assert model.located is not None  # it is registered
        try:
            with model.located.reading():
                yield
        except FillCancelledError as error:
            raise CancelledError(f"the load of {model.name} was cancelled") from error
        except CacheFullError as error:
            raise EngineError(f"{model.name}: {error}") from error
        except (ModelError, OSError) as error:
            self._phases.failed(model, error)
            raise EngineError(model.reason) from error


def _files(model: Model) -> WeightFiles:
    assert model.files is not None  # it is registered
    return model.files
