"""Checks across objects: dangling references, duplicate names, pools without models."""

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
    """An object and the document it was read from."""

    value: Kind
    origin: Origin

    def __str__(self) -> str:
        return f"{self.origin} ({self.value.kind} {self.value.metadata.name})"


def cross_check(gpu_pools: list[Placed[GpuPool]], model_pools: list[Placed[ModelPool]], path: Path) -> list[str]:
    """Return a sentence for each problem between objects; empty when there is none."""
    if not gpu_pools:
        return [f"{path}: has no GpuPool; add one (see examples/quickstart/gpupool.yaml)"]
    problems = [*_duplicates(gpu_pools), *_duplicates(model_pools), *_references(gpu_pools, model_pools)]
    for gpu_pool in gpu_pools:
        attached = [placed for placed in model_pools if placed.value.pool == key_of(gpu_pool.value)]
        if not attached:
            name = gpu_pool.value.metadata.name
            problems.append(f"{gpu_pool}: no ModelPool refers to it; add one with gpuPoolRef.name: {name}")
        problems += [*_served_twice(attached), *_other_port(attached), *_tenants(gpu_pool.value, attached)]
        problems += [*_without_disk(gpu_pool, attached), *_for_kubernetes(gpu_pool, attached)]
        problems += _without_adapter_memory(gpu_pool, attached)
    return problems


def key_of(pool: GpuPool | ModelPool) -> tuple[str, str]:
    """Return a pool's namespace and name."""
    return pool.metadata.namespace, pool.metadata.name


def allows(gpu_pool: GpuPool, namespace: str) -> bool:
    """Return whether ModelPools of that namespace may use the GpuPool."""
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
    """Yield the fields that work on Kubernetes only."""
    spec = gpu_pool.value.spec
    if not any(role.replicas or role.max for role in spec.roles.values()):
        yield f"{gpu_pool}: spec.engines.replicas: must be at least 1 with `aegaeon up`, which does not scale from 0"
    for placed in model_pools:
        for index, tenant in enumerate(placed.value.spec.tenants):
            if tenant.key_secret_ref:
                yield f"{placed}: spec.tenants[{index}].keySecretRef: needs Kubernetes; with `aegaeon up` set keyFile"
        for place, source in _sources(placed.value):
            guarded = source.guarded
            if guarded and guarded.credentials_secret_ref:
                problem = "credentialsSecretRef: needs Kubernetes; with `aegaeon up` set credentialsFile"
                yield f"{placed}: {place}: {problem}"


def _sources(pool: ModelPool) -> Iterator[tuple[str, Source]]:
    """Yield the sources of a pool's models and adapters, each with its field."""
    for index, model in enumerate(pool.spec.models):
        yield f"spec.models[{index}].source", model.source
        for number, adapter in enumerate(model.adapters):
            yield f"spec.models[{index}].adapters[{number}].source", adapter.source


def _without_adapter_memory(gpu_pool: Placed[GpuPool], model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    for placed in model_pools if gpu_pool.value.spec.adapters is None else ():
        for index, model in enumerate(placed.value.spec.models):
            if model.adapters:
                yield (
                    f"{placed}: spec.models[{index}].adapters: {gpu_pool} has no spec.adapters (backend vllm); add it "
                    "to reserve memory for adapters, or remove the model's adapters"
                )


def _duplicates(objects: list[Placed[Kind]]) -> Iterator[str]:
    first: dict[tuple[str, str], Placed[Kind]] = {}
    for placed in objects:
        other = first.setdefault(key_of(placed.value), placed)
        if other is not placed:
            yield f"{placed}: metadata.name: is a duplicate of {other.origin}; rename one of them"


def _served_twice(model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    first: dict[str, str] = {}
    for placed in model_pools:
        for index, model in enumerate(placed.value.spec.models):
            places = [f"spec.models[{index}].name"]
            places += [f"spec.models[{index}].adapters[{number}].name" for number in range(len(model.adapters))]
            for name, place in zip(model.names, places, strict=True):
                field = f"{placed}: {place}"
                other = first.setdefault(name, field)
                if other != field:
                    yield f"{field}: '{name}' is already served by {other}; rename one of them"


def _other_port(model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    for placed in model_pools[1:]:
        port, other = placed.value.spec.gateway.port, model_pools[0].value.spec.gateway.port
        if port != other:
            yield (
                f"{placed}: spec.gateway.port: {port} differs from {other} in {model_pools[0].origin}; "
                f"ModelPools of one GpuPool share a gateway, so set the same port in both"
            )


def _tenants(gpu_pool: GpuPool, model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    namespace = gpu_pool.metadata.namespace
    known = [claim for placed in model_pools for claim in claims(namespace, placed.value, str(placed))]
    return (f"{problem.claim.pool}: {problem.place}: {problem.text}" for problem in contradictions(known))


def _without_disk(gpu_pool: Placed[GpuPool], model_pools: list[Placed[ModelPool]]) -> Iterator[str]:
    for placed in model_pools if gpu_pool.value.spec.memory.disk is None else ():
        for place, source in _sources(placed.value):
            if source.needs_disk:
                yield (
                    f"{placed}: {place}: needs a disk tier, but {gpu_pool} has no spec.memory.disk; add it with a path"
                )
