"""All fuzz targets by name."""

from __future__ import annotations

from fuzz import apis, documents, engine, gateway, picker, scheduler

_MODULES = (gateway, apis, documents, engine, scheduler, picker)
TARGETS = {target.name: target for module in _MODULES for target in module.TARGETS}
