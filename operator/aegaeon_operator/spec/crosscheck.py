"""What no single object can know: references that lead nowhere, names given twice, pools without models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from aegaeon_operator.spec.resources import GpuPool, ModelPool, Tenant

Kind = TypeVar("Kind", GpuPool, ModelPool)


@dataclass(frozen=True, slots=True)
class Origin:
    """A document of a file; documents count from 1."""

    file: Path
    document: int

    def __str__(self) -> str:
        return f"{self.file}: document {self.document}"


@dataclass(frozen=True, slots=True)
class Placed(Generic[Kind]):
    """An object and where it was read."""

    value: Kind
    origin: Origin

    def __str__(self) -> str:
        return f"{self.origin} ({self.value.kind} {self.value.metadata.name})"


def cross_check(gpu_pools: list[Placed[GpuPool]], model_pools: list[Placed[ModelPool]], path: Path) -> list[str]:
    """Sentences about what does not fit together; empty when all is well."""
    if not gpu_pools:
        return [f"{path}: has no GpuPool; add one (examples/quickstart/gpupool.yaml is a small one)"]
    problems = [*_given_twice(gpu_pools), *_given_twice(model_pools)]
    known = {placed.value.metadata.name for placed in gpu_pools}
    problems += [
        f"{placed}: spec.gpuPoolRef.name: there is no GpuPool '{placed.value.spec.gpu_pool_ref.name}'; "
        f"known: {', '.join(sorted(known))}"
        for placed in model_pools
        if placed.value.spec.gpu_pool_ref.name not in known
    ]
    for gpu_pool in gpu_pools:
        name = gpu_pool.value.metadata.name
        attached = [placed for placed in model_pools if placed.value.spec.gpu_pool_ref.name == name]
        if not attached:
            problems.append(f"{gpu_pool}: no ModelPool refers to it; add one with gpuPoolRef.name: {name}")
        problems += [*_served_twice(attached), *_other_port(attached), *_tenants(attached)]
        problems += _without_disk(gpu_pool, attached)
    return problems


def _given_twice(placed: list[Placed[Kind]]) -> Iterator[str]:
    first: dict[str, Placed[Kind]] = {}
    for one in placed:
        other = first.setdefault(one.value.metadata.name, one)
        if other is not one:
            yield f"{one}: metadata.name: given twice, first in {other.origin}; rename one of them"


def _served_twice(model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    first: dict[str, str] = {}
    for placed in model_pools:
        for index, model in enumerate(placed.value.spec.models):
            here = f"{placed}: spec.models[{index}].name"
            other = first.setdefault(model.name, here)
            if other != here:
                yield f"{here}: '{model.name}' is served already by {other}; rename one of them"


def _other_port(model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    for placed in model_pools[1:]:
        port, other = placed.value.spec.gateway.port, model_pools[0].value.spec.gateway.port
        if port != other:
            yield (
                f"{placed}: spec.gateway.port: {port} differs from {other} in {model_pools[0].origin}; "
                f"ModelPools of one GpuPool share a gateway, so give both the same port"
            )


def _tenants(model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    """A tenant of several ModelPools is the same one everywhere; what it is granted is served here."""
    first: dict[str, tuple[str, Tenant]] = {}
    for placed in model_pools:
        served = {model.name for model in placed.value.spec.models}
        for index, tenant in enumerate(placed.value.spec.tenants):
            here = f"{placed}: spec.tenants[{index}]"
            for name in tenant.models or ():
                if name not in served:
                    yield f"{here}.models: '{name}' is no model of this ModelPool; known: {', '.join(sorted(served))}"
            there, other = first.setdefault(tenant.name, (here, tenant))
            if (other.key_file, other.quota) != (tenant.key_file, tenant.quota):
                yield f"{here}: '{tenant.name}' has another keyFile or quota in {there}; make them equal, or rename one"


def _without_disk(gpu_pool: Placed[GpuPool], model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    for placed in model_pools if gpu_pool.value.spec.memory.disk is None else ():
        for index, model in enumerate(placed.value.spec.models):
            if model.source.needs_disk:
                yield (
                    f"{placed}: spec.models[{index}].source: is kept on disk, but {gpu_pool} has no spec.memory.disk; "
                    "add one with a path"
                )
