"""The catalog's models with their state in this engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.weights.models import Adapter, Model


@dataclass(slots=True)
class ModelTable:
    """Guarded by `monitor`. `withdrawn`: models that left the catalog and still have slabs; `adapters`: of all models,
    and those that left the catalog and still have sequences."""

    monitor: Monitor
    models: dict[str, Model] = field(default_factory=dict)
    withdrawn: list[Model] = field(default_factory=list)
    adapters: list[Adapter] = field(default_factory=list)

    @property
    def all(self) -> list[Model]:
        """Every model that may have slabs."""
        return [*self.models.values(), *self.withdrawn]
