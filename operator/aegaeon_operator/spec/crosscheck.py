"""What no single object can know: references that lead nowhere, names given twice, pools without models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from aegaeon_operator.spec.resources import GpuPool, ModelPool, Source
from aegaeon_operator.spec.tenancy import claims, contradictions

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
    problems = [*_given_twice(gpu_pools), *_given_twice(model_pools), *_references(gpu_pools, model_pools)]
    for gpu_pool in gpu_pools:
        attached = [placed for placed in model_pools if placed.value.pool == key_of(gpu_pool.value)]
        if not attached:
            name = gpu_pool.value.metadata.name
            problems.append(f"{gpu_pool}: no ModelPool refers to it; add one with gpuPoolRef.name: {name}")
        problems += [*_served_twice(attached), *_other_port(attached), *_tenants(gpu_pool.value, attached)]
        problems += [*_without_disk(gpu_pool, attached), *_for_kubernetes(gpu_pool, attached)]
        problems += _without_room(gpu_pool, attached)
    return problems


def key_of(pool: GpuPool | ModelPool) -> tuple[str, str]:
    """Namespace and name."""
    return pool.metadata.namespace, pool.metadata.name


def allows(gpu_pool: GpuPool, namespace: str) -> bool:
    """Whether ModelPools of that namespace may use the GpuPool."""
    allowed = gpu_pool.spec.allowed_namespaces
    return namespace == gpu_pool.metadata.namespace or namespace in allowed or "*" in allowed


def _references(gpu_pools: list[Placed[GpuPool]], model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    known = {key_of(placed.value): placed.value for placed in gpu_pools}
    for placed in model_pools:
        namespace, name = placed.value.pool
        gpu_pool = known.get((namespace, name))
        if gpu_pool is None:
            yield (
                f"{placed}: spec.gpuPoolRef.name: there is no GpuPool '{name}' in namespace '{namespace}'; "
                f"known: {', '.join(sorted('/'.join(key) for key in known))}"
            )
        elif not allows(gpu_pool, placed.value.metadata.namespace):
            yield (
                f"{placed}: spec.gpuPoolRef: GpuPool '{name}' does not allow namespace "
                f"'{placed.value.metadata.namespace}'; add it to its allowedNamespaces"
            )


def _for_kubernetes(gpu_pool: Placed[GpuPool], model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    """What only a cluster can do."""
    spec = gpu_pool.value.spec
    if not any(role.replicas or role.max for role in spec.roles.values()):
        yield f"{gpu_pool}: spec.engines.replicas: 0 engines serve nothing here; ask for one at least"
    for placed in model_pools:
        for index, tenant in enumerate(placed.value.spec.tenants):
            if tenant.key_secret_ref:
                yield f"{placed}: spec.tenants[{index}].keySecretRef: there are no Secrets here; give keyFile"
        for place, source in _sources(placed.value):
            guarded = source.guarded
            if guarded and guarded.credentials_secret_ref:
                yield f"{placed}: {place}: credentialsSecretRef: there are no Secrets here; give credentialsFile"


def _sources(pool: ModelPool) -> Iterator[tuple[str, Source]]:
    """Of its models and of their adapters, each with the field that says it."""
    for index, model in enumerate(pool.spec.models):
        yield f"spec.models[{index}].source", model.source
        for number, adapter in enumerate(model.adapters):
            yield f"spec.models[{index}].adapters[{number}].source", adapter.source


def _without_room(gpu_pool: Placed[GpuPool], model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    for placed in model_pools if gpu_pool.value.spec.adapters is None else ():
        for index, model in enumerate(placed.value.spec.models):
            if model.adapters:
                yield (
                    f"{placed}: spec.models[{index}].adapters: {gpu_pool} has no spec.adapters, which needs backend "
                    "vllm; add it with memory for them, or remove these"
                )


def _given_twice(placed: list[Placed[Kind]]) -> Iterator[str]:
    first: dict[tuple[str, str], Placed[Kind]] = {}
    for one in placed:
        other = first.setdefault(key_of(one.value), one)
        if other is not one:
            yield f"{one}: metadata.name: given twice, first in {other.origin}; rename one of them"


def _served_twice(model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    first: dict[str, str] = {}
    for placed in model_pools:
        for index, model in enumerate(placed.value.spec.models):
            places = [f"spec.models[{index}].name"]
            places += [f"spec.models[{index}].adapters[{number}].name" for number in range(len(model.adapters))]
            for name, place in zip(model.names, places, strict=True):
                here = f"{placed}: {place}"
                other = first.setdefault(name, here)
                if other != here:
                    yield f"{here}: '{name}' is served already by {other}; rename one of them"


def _other_port(model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    for placed in model_pools[1:]:
        port, other = placed.value.spec.gateway.port, model_pools[0].value.spec.gateway.port
        if port != other:
            yield (
                f"{placed}: spec.gateway.port: {port} differs from {other} in {model_pools[0].origin}; "
                f"ModelPools of one GpuPool share a gateway, so give both the same port"
            )


def _tenants(gpu_pool: GpuPool, model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    namespace = gpu_pool.metadata.namespace
    found = [claim for placed in model_pools for claim in claims(namespace, placed.value, str(placed))]
    return (f"{one.claim.pool}: {one.place}: {one.text}" for one in contradictions(found))


def _without_disk(gpu_pool: Placed[GpuPool], model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    for placed in model_pools if gpu_pool.value.spec.memory.disk is None else ():
        for place, source in _sources(placed.value):
            if source.needs_disk:
                yield (
                    f"{placed}: {place}: is kept on disk, but {gpu_pool} has no spec.memory.disk; add one with a path"
                )
