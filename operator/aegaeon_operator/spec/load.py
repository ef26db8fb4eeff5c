"""Loads YAML files as validated objects, or reports a sentence for each problem.

The problems of all files are reported together, so that a user can correct them together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from aegaeon_operator.errors import ManifestError
from aegaeon_operator.spec.crosscheck import Origin, Placed, cross_check
from aegaeon_operator.spec.explain import explain
from aegaeon_operator.spec.resources import API_VERSION, GpuPool, ModelPool, ServedModel, Source

MAX_NODES = 200_000
"""values in one document, an anchor's counted at each use: a few lines of anchors can expand to billions of values"""

AnySource = TypeVar("AnySource", bound=Source)
_KINDS: dict[str, type[GpuPool] | type[ModelPool]] = {"GpuPool": GpuPool, "ModelPool": ModelPool}


@dataclass(frozen=True, slots=True)
class Pool:
    """A GpuPool and all ModelPools that refer to it. Every hostPath is absolute."""

    gpu_pool: GpuPool
    model_pools: tuple[ModelPool, ...]

    @property
    def models(self) -> tuple[ServedModel, ...]:
        return tuple(model for model_pool in self.model_pools for model in model_pool.spec.models)


@dataclass(frozen=True, slots=True)
class Manifests:
    """The pools of all files, checked against each other."""

    pools: tuple[Pool, ...]


def load_manifests(path: Path, models_folder: Path) -> Manifests:
    """Read a YAML file, or all *.yaml and *.yml files of a folder. Raises ManifestError with every problem found."""
    problems: list[str] = []
    gpu_pools: list[Placed[GpuPool]] = []
    model_pools: list[Placed[ModelPool]] = []
    for file in _files(path):
        for origin, document in _documents(file, problems):
            loaded = _validate(origin, document, problems)
            if isinstance(loaded, GpuPool):
                gpu_pools.append(Placed(loaded, origin))
            elif isinstance(loaded, ModelPool):
                try:
                    model_pools.append(Placed(_absolute(loaded, file.parent, models_folder), origin))
                except ValueError as error:  # a NUL, which YAML can write and no path has
                    problems.append(f"{origin}: hostPath or keyFile is not a valid path: {error}")
    problems = problems or cross_check(gpu_pools, model_pools, path)
    if problems:
        raise ManifestError(problems)
    return Manifests(tuple(Pool(gpu.value, _attached(gpu.value, model_pools)) for gpu in gpu_pools))


def _attached(gpu_pool: GpuPool, model_pools: list[Placed[ModelPool]]) -> tuple[ModelPool, ...]:
    key = (gpu_pool.metadata.namespace, gpu_pool.metadata.name)
    return tuple(placed.value for placed in model_pools if placed.value.pool == key)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ManifestError([f"{path}: no such file or folder"])
    files = sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml") and file.is_file())
    if not files:
        raise ManifestError([f"{path}: has no *.yaml file; put a GpuPool and a ModelPool there"])
    return files


class _Loader(yaml.SafeLoader):
    """A SafeLoader that reads YAML as Kubernetes does: no dates, and a duplicate key is an error."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - overrides PyYAML's own class attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        duplicate = next((key for key in keys if keys.count(key) > 1), None)
        if duplicate is not None:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key '{duplicate}'", node.start_mark)
        return super().construct_mapping(node, deep)


def _documents(file: Path, problems: list[str]) -> Iterator[tuple[Origin, object]]:
    number = 0
    try:
        for number, document in enumerate(yaml.load_all(file.read_text("utf-8"), _Loader), start=1):
            if document is not None:
                yield Origin(file, number), document
    except yaml.MarkedYAMLError as error:
        at = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problems.append(f"{Origin(file, number + 1)}{at}: not valid YAML: {error.problem}")
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        problems.append(f"{file}: cannot be read: {' '.join(str(error).split())}")
    except RecursionError:
        problems.append(f"{Origin(file, number + 1)}: is nested too deeply")
    except ValueError as error:  # a number with more digits than Python reads, for example
        problems.append(f"{Origin(file, number + 1)}: holds a value that cannot be read: {error}")


def _validate(origin: Origin, document: object, problems: list[str]) -> GpuPool | ModelPool | None:
    if not isinstance(document, dict):
        problems.append(f"{origin}: is not a mapping; a manifest begins with apiVersion and kind")
        return None
    if _is_too_large(document):
        problems.append(f"{origin}: has more than {MAX_NODES} values, or an anchor that contains itself")
        return None
    kind = _KINDS.get(str(document.get("kind")))
    if kind is None:
        problem = f"{document['kind']!r} is not known here" if "kind" in document else "is required"
        problems.append(f"{origin}: kind: {problem}; allowed: {', '.join(_KINDS)} ({API_VERSION})")
        return None
    try:
        return kind.model_validate_json(json.dumps(document))
    except TypeError:
        problems.append(f"{origin}: keys must be text")
    except ValidationError as error:
        label = f"{origin} ({document['kind']} {_name(document)})"
        problems.extend(f"{label}: {sentence}" for sentence in explain(error, kind))
    return None


def _is_too_large(document: dict[Any, Any]) -> bool:
    count, waiting = 0, [iter(document.values())]
    while waiting:
        for value in waiting.pop():
            count += 1
            if count > MAX_NODES:
                return True
            if isinstance(value, dict | list):
                waiting.append(iter(value.values() if isinstance(value, dict) else value))
    return False


def _name(document: dict[Any, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name", "without a name")) if isinstance(metadata, dict) else "without a name"


def _absolute(pool: ModelPool, manifest_folder: Path, models_folder: Path) -> ModelPool:
    models = tuple(_absolute_model(model, manifest_folder, models_folder) for model in pool.spec.models)
    tenants = tuple(
        tenant.model_copy(update={"key_file": _absolute_path(tenant.key_file, manifest_folder)})
        if tenant.key_file
        else tenant
        for tenant in pool.spec.tenants
    )
    spec = pool.spec.model_copy(update={"models": models, "tenants": tenants})
    return pool.model_copy(update={"spec": spec})


def _absolute_path(path: str, base: Path) -> str:
    """Resolve `..`, links and `~`. Path would raise RuntimeError for a cycle of links and for an unknown user."""
    return os.path.realpath(base / os.path.expanduser(path))


def _absolute_model(model: ServedModel, manifest_folder: Path, models_folder: Path) -> ServedModel:
    def absolute(source: AnySource) -> AnySource:
        folder = source.host_path
        if folder is None:
            return source
        path = _absolute_path(folder, manifest_folder if folder.startswith(("./", "../")) else models_folder)
        return source.model_copy(update={"host_path": path})

    adapters = tuple(adapter.model_copy(update={"source": absolute(adapter.source)}) for adapter in model.adapters)
    return model.model_copy(update={"source": absolute(model.source), "adapters": adapters})
