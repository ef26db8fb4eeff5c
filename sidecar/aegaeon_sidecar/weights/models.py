"""The sidecar's record of one catalog model, from its source to its range on the device."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from aegaeon_native import Range, SlabPool
from aegaeon_proto.engine.catalog import AdapterSpec, AdapterState, Footprint, ModelPhase, ModelSpec, ModelState
from aegaeon_proto.engine.ids import KvShape
from aegaeon_sidecar.backends import AdapterWeights
from aegaeon_sidecar.domain.errors import BackendError, OtherWeightsError
from aegaeon_sidecar.domain.first_steps import FirstSteps
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.models.weight_files import WeightFiles
from aegaeon_sidecar.weights.image import Image
from aegaeon_sidecar.weights.pace import Pace
from aegaeon_sidecar.weights.sources import Located


@dataclass(slots=True, eq=False)
class SharedWeights:
    """Slabs of the device with the weights of one content, and the models that show them, under several names.

    Without models they are free, `slabs` is empty, and `ticket` is the pool's name of those not taken yet.
    """

    slabs: list[int] = field(default_factory=list)
    models: set[Model] = field(default_factory=set)
    ticket: int = 0

    def keep(self, pool: SlabPool) -> None:
        """Give the slabs back with what is in them."""
        self.ticket, self.slabs = pool.keep(self.slabs), []

    def reclaim(self, pool: SlabPool) -> bool:
        """Take those back that are still free, the first ones; whether there are any."""
        self.ticket, self.slabs = 0, pool.reclaim(self.ticket)
        return bool(self.slabs)


@dataclass(frozen=True, slots=True)
class Served:
    """The identity of a served name: hashes of the weights, "" while not known, and of its settings."""

    content: str
    config: str

    def check(self, files: WeightFiles, content: str = "") -> None:
        """Raises OtherWeightsError when the files, of this content if it is known, are not what was served."""
        if files.config != self.config:
            raise OtherWeightsError(f"{files.layout.config}: differs from the served one")
        if content and self.content and content != self.content:
            names = [file.name for file in files.layout.files]
            which = names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"
            raise OtherWeightsError(f"{which}: its weights differ from those that were served")


@dataclass(slots=True, eq=False, kw_only=True)
class Claims:
    """The claims of a catalog entry on files and on the host cache.

    `retry_after_s`: the pause that its source requested after a failure.
    `served`: the identity that it must keep while it is served; `located`: the place of its files; `image`: None while
    it is not in the host cache, and pinned before it is read (`pinned`).
    """

    served: Served | None = None
    located: Located | None = None
    image: Image | None = None
    pinned: bool = False
    retry_after_s: float = 0.0

    def check(self, files: WeightFiles, content: str = "") -> None:
        """Raises OtherWeightsError when these files, of this content if it is known, are not what was served."""
        if self.served is not None:
            self.served.check(files, content)

    def drop_image(self) -> None:
        """Give up the claim on the host cache's copy."""
        if self.image is not None:
            self.image.close()
        self.image, self.pinned = None, False

    def let_go(self) -> None:
        """Release it after it is no longer served: host cache and disk tier may evict it."""
        self.drop_image()
        if self.located is not None and self.located.stored is not None:
            self.located.stored.close()
        self.located = None


@dataclass(slots=True, eq=False)
class Model(Claims):
    """One entry of the catalog. Guarded by the engine's lock, but for what is set once by the fetcher.

    `transient`: the cause of the failure need not show in its files; `unsupported`: this engine cannot run such a
    model; `permanent`: the same files will fail again; `trying`: failed, and being tried again;
    `misses`: consecutive failed loads; `together`: the number of new models in the list of models that it came with;
    `files`: their state when they last contained the served weights; `content`: hash of its weights, "" until they
    were read completely.
    `absent`: it is not on this node, and is fetched when requests wait for it; `on_demand`: they do, and so many others
    are fetched before (`ahead`), which takes `wait_s` seconds as far as is known.
    `resident`: its weights are in; `moving`: they come or go just now; `needed`: one of these, or a queued load names
    it; `weights`: their slabs, now or the last time;
    `shown`: slabs that its range is mapped to, its own or not any more;
    `users`: steps that read its weights; `leaving`: no further step may; `map_s`, `copy_s`: seconds of its last load
    until its first copy, and from then on; `loaded_s`: when that ended (time.monotonic());
    `adapters`: by name, of the catalog; sidecars know of them once the model is registered.
    `kv_seed`: what names of its KV blocks begin with; `token_s`: seconds to compute a token of a prompt.
    `first_steps`: those that have not run yet, known once it is registered.
    """

    spec: ModelSpec
    phase: ModelPhase = ModelPhase.FETCHING
    reason: str = ""
    transient: bool = False
    unsupported: bool = False
    permanent: bool = False
    trying: bool = False
    misses: int = 0
    together: int = 1
    files: WeightFiles | None = None
    pace: Pace = field(default_factory=Pace)
    next_report_s: float = 0.0
    next_log_s: float = field(default_factory=lambda: time.monotonic() + 5.0)
    content: str = ""
    layout: Layout | None = None
    range: Range | None = None
    first_steps: FirstSteps = field(default_factory=FirstSteps)
    absent: bool = False
    on_demand: bool = False
    ahead: int = 0
    wait_s: float = 0.0
    resident: bool = False
    moving: bool = False
    needed: bool = False
    weights: SharedWeights | None = None
    shown: list[int] = field(default_factory=list)
    users: int = 0
    leaving: bool = False
    map_s: float = 0.0
    copy_s: float = 0.0
    loaded_s: float = 0.0
    forgotten: bool = False
    kv_seed: bytes = b""
    token_s: float = 0.0
    adapters: dict[str, Adapter] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def usable(self) -> bool:
        """A step may run on it."""
        return self.resident and not self.leaving and not self.forgotten

    def state(self) -> ModelState:
        """The report on it."""
        queued = self.phase is ModelPhase.FETCHING and self.on_demand and not self.pace.done
        return ModelState(
            model=self.name,
            phase=self.phase,
            reason=f"{self.ahead} models are fetched before it" if queued and self.ahead else self.reason,
            bytes_done=self.pace.done,
            bytes_total=self.pace.total,
            bytes_per_s=self.pace.bytes_per_s,
            remaining_s=self.pace.remaining_s or (self.wait_s if queued else 0.0),
            footprint=self._footprint(),
            identity=self.spec.identity,
            adapters=tuple(adapter.own_state() for adapter in self.adapters.values()),
            cold=self.phase is ModelPhase.CACHED and self.first_steps.cold,
            unsupported=self.phase is ModelPhase.FAILED and self.unsupported,
            absent=self.absent,
            on_demand=self.on_demand,
        )

    def _footprint(self) -> Footprint | None:
        if self.layout is None or self.range is None or self.phase != ModelPhase.CACHED:
            return None
        return Footprint(
            weight_bytes=self.layout.weight_bytes,
            weight_slabs=self.range.slabs,
            kv_shape=KvShape(self.layout.kv_shape),
            kv_block_bytes=self.layout.kv_block_bytes,
            kv_block_tokens=self.layout.kv_block_tokens,
            max_model_len=self.layout.max_model_len,
            content=self.content,
            task=self.layout.task.value,
        )


@dataclass(slots=True, eq=False)
class Adapter(Claims):
    """An adapter of a model in the catalog. Guarded by the engine's lock, as Model is.

    `pinned`: sequences use its image; `coming`: it is being brought to the host cache; `forgotten`:
    it has left the catalog; `settings`: its adapter_config.json; `seed`: of its bytes and settings, b"" while unknown.
    """

    spec: AdapterSpec
    base: Model
    phase: ModelPhase = ModelPhase.FETCHING
    reason: str = ""
    transient: bool = False
    unsupported: bool = False
    permanent: bool = False
    trying: bool = False
    files: WeightFiles | None = None
    settings: bytes = b""
    seed: bytes = b""
    coming: bool = False
    forgotten: bool = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def ready(self) -> bool:
        """A step with it may be launched: its image is here to stay, or it is known that it does not come."""
        return self.pinned or not self.coming

    def is_same(self, other: object) -> bool:
        """True when sequences of one can continue with the other."""
        return isinstance(other, Adapter) and self.spec == other.spec

    def weights(self) -> AdapterWeights:
        """The weights for a step. Raises BackendError when they are not available."""
        if not self.pinned or self.image is None or self.files is None:
            raise BackendError(f"adapter {self.name} is not available: {self.reason or 'its image was evicted'}")
        return AdapterWeights(self.seed.hex(), self.files.layout, self.settings, self.image.bytes)

    def own_state(self) -> AdapterState:
        """Its part of the report on its base."""
        unsupported = self.phase is ModelPhase.FAILED and self.unsupported
        return AdapterState(self.name, self.phase, self.reason, self.spec.identity, unsupported)

    def state(self) -> ModelState:
        """The report on it."""
        return self.base.state()
