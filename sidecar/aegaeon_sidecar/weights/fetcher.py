"""Carries out the catalog in its own threads: fetch, check, cache and register each model.

Threads of their own fetch remote models, a few per source at a time, so that a slow or hanging source delays no
other. One thread does the rest, one model after the other. A model that cannot be served is FAILED with its reason,
and the thread continues with the next. Lanes never wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from aegaeon_proto.engine.catalog import DirectorySource, ModelPhase, ModelSpec
from aegaeon_proto.outbound.slots import Slots
from aegaeon_sidecar.backends import Backend
from aegaeon_sidecar.domain.errors import CacheFullError, DiskFullError, FillCancelledError, TooLargeError
from aegaeon_sidecar.domain.sticky import end_if_sticky
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.models.placement import Proof
from aegaeon_sidecar.models.weight_files import WeightFiles, look
from aegaeon_sidecar.weights.adapters import Adapters
from aegaeon_sidecar.weights.addresses import folder_names
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.deaths import Deaths
from aegaeon_sidecar.weights.faults import MODEL_ERRORS, understood
from aegaeon_sidecar.weights.fetch_queue import FetchQueue
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.jobs import Job, Jobs
from aegaeon_sidecar.weights.models import Adapter, Model
from aegaeon_sidecar.weights.pace import Pace
from aegaeon_sidecar.weights.phases import Phases
from aegaeon_sidecar.weights.registry import Registry
from aegaeon_sidecar.weights.reservation import ON_DEMAND, fetched_ahead
from aegaeon_sidecar.weights.ring import NO_FILE, StageRing
from aegaeon_sidecar.weights.sources import Located, Sources, slot_of
from aegaeon_sidecar.weights.table import ModelTable

log = logging.getLogger(__name__)

_REPORT_EVERY_S = 0.25
_LOG_EVERY_S = 5.0
_NO_ROOM_S = 5.0
_EVICTED = "others were used more recently, and the node's disk has no room for all"


class Fetcher:
    """Follows the catalog. `phases` learns how far each model is; `crashed` is called, from the thread, when a defect
    ends one. The thread that registers models with the backend begins with `enter`."""

    def __init__(
        self,
        table: ModelTable,
        kv: KvMemory,
        update_pins: Callable[[], None],
        backend: Backend,
        cache: HostCache,
        ring: StageRing,
        sources: Sources,
        phases: Phases,
        deaths: Deaths,
        crashed: Callable[[BaseException], None],
        enter: Callable[[], None],
        captured: tuple[int, ...],
    ) -> None:
        self._table, self._kv, self._update_pins = table, kv, update_pins
        self._backend, self._cache, self._ring = backend, cache, ring
        self._sources, self._phases, self._deaths = sources, phases, deaths
        self._crashed, self._enter = crashed, enter
        self._registry = Registry(table, kv, update_pins, backend, captured)
        self._stop = threading.Event()
        self._jobs = Jobs()
        self._far = Slots("fetcher")
        self._fetch_queue = FetchQueue(table, phases.tell)
        self._ahead = fetched_ahead(frozenset())
        self._thread = threading.Thread(target=self._run, name="fetcher", daemon=True)
        places = table, backend, cache, ring, sources, phases
        self.adapters = Adapters(*places, self._jobs.put, self._submit, kv.sequences.adapters)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Give up what is being fetched; True when the threads have ended. The engine is stopping by then."""
        self._stop.set()
        deadline = time.monotonic() + timeout_s
        ended = self._far.stop(timeout_s)
        self._jobs.end()  # after what the others brought: it is let go
        self._thread.join(max(deadline - time.monotonic(), 0.1))
        return ended and not self._thread.is_alive()

    def follow(self, catalog: Iterable[ModelSpec], retry: bool = False) -> None:
        """The whole list (engine's lock held): new or changed models are fetched, missing ones forgotten.

        With `retry` a model that failed, or found no room, is tried at once and as its files are now, on request.
        """
        listed = {spec.name: spec for spec in catalog}
        self._ahead = fetched_ahead(folder_names(spec.source for spec in listed.values()))
        self._sources.reconsider()
        for name, model in list(self._table.models.items()):
            spec, again = listed.get(name), retry and (model.absent or model.phase is ModelPhase.FAILED)
            if spec is None or again or not _same(spec, model.spec):
                self._forgive(model)
                self._withdraw(model)
                continue
            model.spec = spec
            self.adapters.follow(model, retry)
            if retry:  # the scheduler's state of it may be wrong
                self._phases.tell(model)
        begun = [Model(spec) for name, spec in listed.items() if name not in self._table.models]
        for model in begun:
            model.together = len(begun)
            self._begin(model)
        self._update_pins()

    def fetch(self, name: str, identity: str) -> None:
        """Requests wait for a model (engine's lock held): it comes, before all that is fetched ahead."""
        model = self._table.models.get(name)
        if model is None or identity not in ("", model.spec.identity):
            return  # the catalog has changed
        if model.absent:
            model.absent, model.reason, model.on_demand, model.pace = False, "", True, Pace()
            self._fetch_queue.join(model)
            self._begin(model)
        else:
            self._phases.tell(model)

    def put_off(self, model: Model, why: str = _EVICTED) -> None:
        """Its copies have made room for others (engine's lock held): it is as if it had never been here, but for what
        the name stands for."""
        if model.phase is not ModelPhase.CACHED:
            return
        self._withdraw(model)
        fresh = self._table.models[model.name] = Model(model.spec, served=model.served)
        self._phases.absent(fresh, why)

    def again(self, model: Model | Adapter) -> None:
        """Try a failed one (engine's lock held). It counts as failed until it can be served as it was."""
        if isinstance(model, Adapter):
            self.adapters.again(model)
            return
        self._forgive(model)
        self._withdraw(model)
        self._begin(Model(model.spec, model.phase, model.reason, trying=True, served=model.served))

    def _forgive(self, model: Model) -> None:
        """Its files are others by now, or a request asks for it."""
        if model.permanent:
            self._deaths.forgive(model.name)

    def _begin(self, model: Model) -> None:
        self._table.models[model.name] = model
        self._phases.tell(model)
        source, job = model.spec.source, partial(self._locate, model)
        if isinstance(source, DirectorySource):
            self._jobs.put(job, model.together)
        else:
            self._far.submit(slot_of(source), partial(self._guarded, job), urgent=model.on_demand)

    def _submit(self, slot: str, job: Job) -> None:
        self._far.submit(slot, partial(self._guarded, job))

    def _withdraw(self, model: Model) -> None:
        model.forgotten = True
        self._fetch_queue.leave(model)
        self.adapters.leave(model)
        del self._table.models[model.name]
        for sequence in [s for s in self._kv.sequences if s.model == model.name]:
            self._kv.sequences.remove(sequence.key)
        self._table.withdrawn.append(model)
        self._jobs.put(partial(self._forget, model))

    def _run(self) -> None:
        self._guarded(self._enter)
        while (job := self._jobs.get()) is not None:
            self._guarded(job)

    def _guarded(self, job: Job) -> None:
        """Whatever a job lets through is a defect of this process."""
        try:
            job()
        except BaseException as error:
            log.exception("the fetcher is dead; the sidecar ends")
            self._crashed(error)
            raise

    def _locate(self, model: Model) -> None:
        """Bring its files to this machine."""
        gives_up = self._gives_up(model)
        if gives_up():
            return
        with self._reporting(model):
            claim = ON_DEMAND if model.on_demand else self._ahead
            located = self._sources.locate(model.spec.source, partial(self._note, model), gives_up, claim=claim)
            self._jobs.put(partial(self._prepare, model, located), model.together)

    def _prepare(self, model: Model, located: Located) -> None:
        """Do everything after the fetch until it can be served."""
        model.located = located
        if self._gives_up(model)():
            model.let_go()
            return
        with self._reporting(model):
            self._deaths.check(model.name)
            with located.reading() as directory:
                with understood(), self._deaths.preparing(model.name):
                    layout = self._backend.describe(directory, model.spec.max_model_len, model.spec.task)
                    files = look(directory, layout)
                model.check(files)
            self._registry.check_fits(layout, self._cache.budget_bytes)
            if layout.proof is None or self._cache.is_proved(layout.proof.key):
                self._complete(model, located, files)
            else:
                self._jobs.prove(partial(self._prove, model, located, files, layout.proof), model.together)

    def _prove(self, model: Model, located: Located, files: WeightFiles, proof: Proof) -> None:
        if self._gives_up(model)():
            model.let_go()
            return
        with self._reporting(model):
            if not self._cache.is_proved(proof.key):  # by a model of the same kind meanwhile
                with understood(), self._deaths.preparing(model.name):
                    proof.run()
                self._cache.remember_proof(proof.key)
            self._complete(model, located, files)

    def _complete(self, model: Model, located: Located, files: WeightFiles) -> None:
        """Put it into the host cache and the backend: it can then be served."""
        with located.reading():
            note = self._cache_weights(model, files)
        self._registry.register(model, files)
        if located.stored is not None:
            located.stored.close()  # from here on it is kept from eviction while it is read, and by being used
        with self._table.monitor.changed:
            self.adapters.follow(model)  # before it may be asked for: sequences wait for adapters that are known
            self._fetch_queue.leave(model, fetched=True)
            model.on_demand = False
        self._phases.cached(model, note)

    @contextmanager
    def _reporting(self, model: Model) -> Iterator[None]:
        """Turn an error of a model into its reason; it affects nothing else. Raises DeviceLostError."""
        try:
            yield
        except FillCancelledError:
            model.let_go()
        except MODEL_ERRORS as error:
            end_if_sticky(error)
            if model.on_demand and isinstance(error, DiskFullError):
                self._stop.wait(_NO_ROOM_S)  # it may be asked for again at once
            self._fetch_queue.leave(model)
            if isinstance(error, DiskFullError) and not isinstance(error, TooLargeError):
                self._phases.absent(model, str(error))
            else:
                self._phases.failed(model, error)
            model.let_go()

    def _cache_weights(self, model: Model, files: WeightFiles) -> str:
        """Put the weights into the host cache if there is room; else a Load will read the files. Returns a note for
        people. Raises OtherWeightsError when the model was served with others."""
        begin, noted, gives_up = time.monotonic(), partial(self._note, model), self._gives_up(model)

        def bring(file: int) -> str:
            content = fill(files, [], self._ring, into_file=file, progress=noted, cancelled=gives_up)
            model.check(files, content)
            return content

        try:
            image = self._cache.obtain(files.identity, files.layout.image_bytes, bring, give_up=gives_up, evict=False)
        except CacheFullError as error:
            log.warning("model %s will be loaded from its files: %s", model.name, error)
            if model.served is not None:
                model.content = bring(NO_FILE)
            return f"not in the host cache: {error}"
        with self._table.monitor.changed:
            model.image, model.content, model.pinned = image, image.content, True
        model.check(files, image.content)
        log.info("model %s: %d bytes cached in %.2f s", model.name, image.nbytes, time.monotonic() - begin)
        return ""

    def _gives_up(self, model: Model) -> Callable[[], bool]:
        return lambda: self._stop.is_set() or model.forgotten

    def _note(self, model: Model, done: int, total: int) -> None:
        """Progress: to the scheduler a few times a second, to the log every few seconds."""
        model.pace.note(done, total)
        now = time.monotonic()
        if now >= model.next_report_s:
            model.next_report_s = now + _REPORT_EVERY_S
            self._phases.tell(model)
        if now >= model.next_log_s:
            model.next_log_s = now + _LOG_EVERY_S
            log.info("model %s: %s", model.name, model.pace)
            self._fetch_queue.advance(model)

    def _forget(self, model: Model) -> None:
        """Drop a withdrawn model once no step and no load uses its range."""
        with self._table.monitor.changed:
            self._table.monitor.wait_until(lambda: not (model.users or model.moving))
            if self._table.monitor.stopping:
                return
            self._registry.unmap(model)
            self._table.withdrawn.remove(model)
            self.adapters.update()
        self._registry.forget(model)
        model.let_go()


def _same(spec: ModelSpec, other: ModelSpec) -> bool:
    """True when both specs fetch and serve the same model; objectives and fetch credentials may differ."""
    if spec.identity and other.identity:
        return spec.identity == other.identity
    return (spec.source, spec.max_model_len, spec.task) == (other.source, other.max_model_len, other.task)
