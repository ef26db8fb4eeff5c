"""Content of a pool's Secrets: configuration, models and tenants, credentials for models' sources."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from aegaeon_operator.reconcile.cluster.attach import Attached
from aegaeon_operator.reconcile.cluster.facts import Json, Key, Live
from aegaeon_operator.reconcile.cluster.names import SCHEDULERS, child, configuration, manifest
from aegaeon_operator.reconcile.cluster.shards import MODELS, MODELS_ENTRY, SECRET_BYTES
from aegaeon_operator.spec.resources import GpuPool

CREATED = "created_s"
"""a key of models' entries that schedulers of the previous release refuse"""


class Part(NamedTuple):
    """A ModelPool's models and tenants, as JSON and as its text, and the shard that holds them; `least`: characters
    that its models take at least in the file of a scheduler of the previous release."""

    content: Json
    text: str
    least: int
    shard: int = 0


def config_files(configs: dict[str, Json], served: Json, parts: list[Part]) -> dict[str, str]:
    """Return the configuration files, with models and tenants for schedulers of the previous release if they fit."""
    by_file = {configuration(name): config for name, config in configs.items()}
    files = {f"{name}.json": json.dumps(config, sort_keys=True) for name, config in by_file.items()}
    if sum(part.least for part in parts) > SECRET_BYTES:
        return files
    scheduler = f"{configuration(SCHEDULERS[0])}.json"
    known = [_known_before(model) for model in served["models"]]
    with_models = {**files, scheduler: json.dumps(configs[SCHEDULERS[0]] | served | {"models": known}, sort_keys=True)}
    return with_models if sum(map(len, with_models.values())) <= SECRET_BYTES else files


def _known_before(model: Json) -> Json:
    return {name: value for name, value in model.items() if name != CREATED}


def least_characters(models: list[Json]) -> int:
    """Return the characters that models take at least in the file of a scheduler of the previous release."""
    return sum(len(compact(_known_before(model))) for model in models)


def model_secrets(key: Key, pool: Live[GpuPool], parts: list[Part]) -> Iterator[Json]:
    """Yield the Secrets of models and tenants, which schedulers read at their start."""
    for shard in sorted({part.shard for part in parts}):
        text = f"[{','.join(part.text for part in parts if part.shard == shard)}]"
        yield secret(key, pool, f"{MODELS}-{shard}", {MODELS_ENTRY: text})


def credential_secrets(key: Key, pool: Live[GpuPool], attached: Attached) -> Iterator[Json]:
    """Yield the Secrets of credentials; pods of the previous release mount only the first."""
    yield secret(key, pool, "credentials", _fitting(attached.credentials))
    shards: dict[int, dict[str, str]] = {}
    for (_, file), shard in attached.room.places.items():
        shards.setdefault(shard, {})[file] = attached.credentials[file]
    for shard, files in sorted(shards.items()):
        yield secret(key, pool, f"credentials-{shard}", files)


def _fitting(files: dict[str, str]) -> dict[str, str]:
    """Return the first files that fit in a Secret."""
    sizes = accumulate(len(content.encode()) for content in files.values())
    return {name: files[name] for name, size in zip(files, sizes, strict=True) if size <= SECRET_BYTES}


def compact(value: object) -> str:
    """Return compact JSON, the same for the same content."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def secret(key: Key, pool: Live[GpuPool], part: str, content: dict[str, str]) -> Json:
    """Return a Secret of the pool with these entries."""
    body = manifest("v1", "Secret", key.namespace, child(key, part), key, pool)
    body["type"] = "Opaque"
    body["data"] = {name: base64.b64encode(text.encode()).decode() for name, text in sorted(content.items())}
    return body
