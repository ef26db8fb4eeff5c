"""Registers fetched models with the backend: a range for the weights, blocks of the KV shape; and takes them back."""

from __future__ import annotations

from collections.abc import Callable

from aegaeon_native import Range
from aegaeon_sidecar.backends import Backend
from aegaeon_sidecar.domain.errors import ModelError
from aegaeon_sidecar.domain.first_steps import FirstSteps
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.memory.prefix import seed_of
from aegaeon_sidecar.models.documents import MOST_CONFIG_BYTES, read_document
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.models.weight_files import WeightFiles
from aegaeon_sidecar.weights.faults import understood
from aegaeon_sidecar.weights.models import Model, Served
from aegaeon_sidecar.weights.shared_weights import drop
from aegaeon_sidecar.weights.table import ModelTable


class Registry:
    """Owner of the KV shapes that the backend has blocks of. `captured`: kinds of steps that run once before others."""

    def __init__(
        self,
        table: ModelTable,
        kv: KvMemory,
        update_pins: Callable[[], None],
        backend: Backend,
        captured: tuple[int, ...],
    ) -> None:
        self._table, self._kv, self._update_pins = table, kv, update_pins
        self._backend, self._captured = backend, captured
        self._pool = kv.device.pool
        self._bound: set[str] = set()  # KV shapes whose blocks the backend has

    def check_fits(self, layout: Layout, host_bytes: int) -> None:
        """Check that the weights leave a slab for KV blocks, without which no step could run. Raises ModelError.

        The weights of several ranks, and those that are baked, come by way of the host cache of `host_bytes`.
        """
        if not layout.streams and layout.image_bytes > host_bytes:
            raise ModelError(
                f"the weights for {layout.ranks} accelerators have {layout.image_bytes} bytes, but the host cache, "
                f"which they pass through, has {host_bytes}; raise host_cache_bytes"
            )
        slabs = self._slabs(layout)
        if slabs >= self._pool.total:
            raise ModelError(
                f"the weights take {slabs} slabs, and the device has {self._pool.total} for weights and KV cache "
                "together; raise device_bytes"
            )

    def register(self, model: Model, files: WeightFiles) -> None:
        """Give the model a range of its own and the backend its addresses. Raises ModelError and BackendError."""
        directory, layout = files.directory, files.layout
        weights = Range(self._pool, self._slabs(layout))
        parts = [weights.dlpack(0, layout.weight_bytes, rank) for rank in range(self._pool.ranks)]
        with understood():
            seed = seed_of(model.content, read_document(directory / layout.config, MOST_CONFIG_BYTES))
            self._backend.register(model.name, directory, layout, *parts)
        try:
            self._bind(layout)
        except BaseException:
            self._backend.forget(model.name)  # the range that it shows goes with this call
            raise
        with self._table.monitor.changed:
            model.layout, model.range, model.kv_seed = layout, weights, seed
            model.first_steps = FirstSteps(() if layout.pools else self._captured)
            model.files, model.served, model.trying = files, Served(model.content, files.config), False
            self._update_pins()

    def unmap(self, model: Model) -> None:
        """Free the slabs of a withdrawn model (engine's lock held)."""
        if model.range is not None:
            model.range.unmap(0, len(model.shown))
            drop(self._kv.device, model)
            model.resident = False

    def forget(self, model: Model) -> None:
        """Have the backend drop it; the range goes with its last user."""
        if model.range is not None:
            self._backend.forget(model.name)

    def _slabs(self, layout: Layout) -> int:
        return -(-layout.weight_bytes // self._pool.slab_bytes)

    def _bind(self, layout: Layout) -> None:
        """Add the blocks of its KV shape to both tiers and the backend; again where that did not succeed."""
        with self._table.monitor.changed:
            blocks = self._kv.device.add_shape(layout.kv_shape, layout.kv_block_bytes)
            self._kv.host.add_shape(layout.kv_shape, layout.kv_block_bytes)
        if layout.kv_shape not in self._bound:
            self._backend.bind_kv(layout.kv_shape, *(blocks.dlpack(rank) for rank in range(self._pool.ranks)))
            self._bound.add(layout.kv_shape)
