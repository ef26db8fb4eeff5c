"""Manifests: the typed definition of both kinds, and how files become them."""

from aegaeon_operator.spec.load import Manifests, Pool, load_manifests
from aegaeon_operator.spec.resources import API_VERSION, GpuPool, ModelPool, ServedModel, Source

__all__ = ["API_VERSION", "GpuPool", "Manifests", "ModelPool", "Pool", "ServedModel", "Source", "load_manifests"]
