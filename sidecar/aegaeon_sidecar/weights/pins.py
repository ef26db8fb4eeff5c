"""Images that must not be evicted: those of models that are resident, loading, or named by a queued Load."""

from __future__ import annotations

from collections.abc import Collection

from aegaeon_sidecar.weights.table import ModelTable


def update_pins(table: ModelTable, queued: Collection[str]) -> None:
    """Pin and unpin as residents and the loads that are `queued` (names) demand (lock held)."""
    for model in table.models.values():
        model.needed = model.resident or model.moving or model.name in queued
        if model.image is None or model.range is None:  # the fetcher still holds it
            continue
        if model.needed and not model.pinned:
            model.pinned = model.image.pin()
        elif model.pinned and not model.needed:
            model.image.unpin()
            model.pinned = False


def lock_ahead(table: ModelTable, queued: Collection[str]) -> None:
    """Have the pages of what `queued` loads (names) are to copy locked, by another thread (lock held)."""
    for name in queued:
        model = table.models.get(name)
        if model is not None and model.image is not None and model.pinned and not model.resident:
            model.image.lock_soon()
