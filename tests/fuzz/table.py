"""All fuzz targets by name."""

from __future__ import annotations

from fuzz import engine, gateway, picker, scheduler

TARGETS = {target.name: target for module in (gateway, engine, scheduler, picker) for target in module.TARGETS}
