"""Brings the catalog's adapters to the host cache, as the fetcher brings models, and keeps there what sequences use.

An adapter is checked against its base, so it is prepared once that is registered, and it fails alone. Which adapters
are on the device, the backend decides at each step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

from aegaeon_proto.engine.catalog import AdapterSpec, DirectorySource, ModelPhase
from aegaeon_sidecar.backends import Backend
from aegaeon_sidecar.domain.errors import FillCancelledError
from aegaeon_sidecar.memory.prefix import seed_of
from aegaeon_sidecar.models.documents import MOST_CONFIG_BYTES, read_document
from aegaeon_sidecar.models.weight_files import WeightFiles, look
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.faults import MODEL_ERRORS, understood
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.image import Image
from aegaeon_sidecar.weights.models import Adapter, Model, Served
from aegaeon_sidecar.weights.phases import Phases
from aegaeon_sidecar.weights.remote import ADAPTER_FILES
from aegaeon_sidecar.weights.reservation import ON_DEMAND
from aegaeon_sidecar.weights.ring import StageRing
from aegaeon_sidecar.weights.sources import Located, Sources, slot_of
from aegaeon_sidecar.weights.table import ModelTable

log = logging.getLogger(__name__)

Job = Callable[[], None]


class Adapters:
    """`near` takes jobs for the fetcher's thread, `far` those for the threads of a source's slot.

    `used`: adapters of sequences that are open, or have a step under way.
    """

    def __init__(
        self,
        table: ModelTable,
        backend: Backend,
        cache: HostCache,
        ring: StageRing,
        sources: Sources,
        phases: Phases,
        near: Callable[[Job], None],
        far: Callable[[str, Job], None],
        used: Callable[[], Collection[object]],
    ) -> None:
        self._table, self._backend, self._cache, self._ring = table, backend, cache, ring
        self._sources, self._phases = sources, phases
        self._near, self._far = near, far
        self._used = used

    def follow(self, model: Model, retry: bool = False) -> None:
        """Prepare the adapters that the model's spec names (engine's lock held).

        None before the model is registered, and none when it left the catalog meanwhile: they would be tried for ever.
        """
        listed = {spec.name: spec for spec in model.spec.adapters} if model.range and not model.forgotten else {}
        before = dict(model.adapters)
        for name, adapter in before.items():
            spec, again = listed.get(name), retry and adapter.phase is ModelPhase.FAILED
            if spec is None or again or not _same(spec, adapter.spec):
                self._withdraw(adapter)
            else:
                adapter.spec = spec
        for name, spec in listed.items():
            if name not in model.adapters:
                self._begin(Adapter(spec, model))
        if model.adapters != before:
            self._phases.tell(model)
        self.update()

    def leave(self, model: Model) -> None:
        """The model leaves the catalog, and its adapters with it (engine's lock held)."""
        for adapter in list(model.adapters.values()):
            self._withdraw(adapter)

    def again(self, adapter: Adapter) -> None:
        """Try a failed one (engine's lock held). It counts as failed until it can be served as it was."""
        self._withdraw(adapter)
        self._begin(
            Adapter(adapter.spec, adapter.base, adapter.phase, adapter.reason, trying=True, served=adapter.served)
        )

    def update(self) -> None:
        """Pin what sequences use, unpin the rest, let go of what has left the catalog (engine's lock held)."""
        used = self._used()
        for adapter in list(self._table.adapters):
            if adapter in used:
                self._pin(adapter)
            elif adapter.pinned and adapter.image is not None:
                adapter.image.unpin()
                adapter.pinned = False
            if adapter.forgotten and adapter not in used and not adapter.coming:
                self._table.adapters.remove(adapter)
                adapter.let_go()

    def _pin(self, adapter: Adapter) -> None:
        """Pin its image; an evicted image is loaded again while its sequences wait."""
        if adapter.pinned or adapter.coming or adapter.phase is not ModelPhase.CACHED or adapter.located is None:
            return
        adapter.pinned = adapter.image is not None and adapter.image.pin()
        if not adapter.pinned:
            adapter.drop_image()
            adapter.coming = True
            self._near(partial(self._prepare, adapter, adapter.located))

    def _begin(self, adapter: Adapter) -> None:
        adapter.base.adapters[adapter.name] = adapter
        self._table.adapters.append(adapter)
        adapter.coming = True
        source, job = adapter.spec.source, partial(self._locate, adapter)
        if isinstance(source, DirectorySource):
            self._near(job)
        else:
            self._far(slot_of(source), job)

    def _withdraw(self, adapter: Adapter) -> None:
        """Sequences that use it go on."""
        adapter.forgotten = True
        if adapter.base.adapters.get(adapter.name) is adapter:
            del adapter.base.adapters[adapter.name]

    def _locate(self, adapter: Adapter) -> None:
        with self._reporting(adapter):
            located = self._sources.locate(
                adapter.spec.source, _unnoted, self._gives_up(adapter), ADAPTER_FILES, ON_DEMAND
            )
            self._near(partial(self._prepare, adapter, located))

    def _prepare(self, adapter: Adapter, located: Located) -> None:
        adapter.located = located
        with self._reporting(adapter), located.reading() as directory:
            with understood():
                layout = self._backend.describe_adapter(adapter.base.name, directory)
                files = look(directory, layout)
                settings = read_document(directory / layout.config, MOST_CONFIG_BYTES)
            adapter.check(files)
            image = self._cache.obtain(
                files.identity,
                layout.image_bytes,
                partial(self._fill, adapter, files),
                give_up=self._gives_up(adapter),
            )
            self._now_cached(adapter, files, settings, image)

    def _fill(self, adapter: Adapter, files: WeightFiles, file: int) -> str:
        content = fill(files, [], self._ring, into_file=file, cancelled=self._gives_up(adapter))
        adapter.check(files, content)
        return content

    def _now_cached(self, adapter: Adapter, files: WeightFiles, settings: bytes, image: Image) -> None:
        with self._table.monitor.changed:
            adapter.image, adapter.pinned = image, True
            adapter.files, adapter.settings = files, settings
            adapter.seed, adapter.served = seed_of(image.content, settings), Served(image.content, files.config)
            adapter.phase, adapter.reason = ModelPhase.CACHED, ""
            adapter.transient = adapter.trying = adapter.coming = False
            self.update()
            self._table.monitor.notify()
        self._phases.tell(adapter)
        log.info("adapter %s of %s: %d bytes cached", adapter.name, adapter.base.name, image.nbytes)

    @contextmanager
    def _reporting(self, adapter: Adapter) -> Iterator[None]:
        """Turn an error of an adapter into its reason; it affects nothing else."""
        try:
            yield
        except (FillCancelledError, *MODEL_ERRORS) as error:
            if not isinstance(error, FillCancelledError):
                self._phases.failed(adapter, error)
            with self._table.monitor.changed:
                adapter.coming = False
                adapter.let_go()
                self.update()
                self._table.monitor.notify()

    def _gives_up(self, adapter: Adapter) -> Callable[[], bool]:
        return lambda: self._table.monitor.stopping or adapter.base.forgotten


def _unnoted(done: int, total: int) -> None:
    """An adapter is small beside its base: its progress is not reported."""


def _same(spec: AdapterSpec, other: AdapterSpec) -> bool:
    return spec.identity == other.identity if spec.identity and other.identity else spec.source == other.source
