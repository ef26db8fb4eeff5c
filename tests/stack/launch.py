"""Manifests of tiny random models, and a stack on them for the length of a `with`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from aegaeon_cli.demo.stack import Stack, free_port

CONTEXT = 2048


def manifests(
    models: dict[str, Path],
    *,
    prefill: int = 0,
    decode: int = 0,
    engines: int = 0,
    device: str = "16Mi",
    host_kv: str = "32Mi",
    host_cache: str = "64Mi",
    backend: str = "torch",
    batches: Path | None = None,
    origins: Sequence[str] = (),
    adapters: Mapping[str, Mapping[str, Path]] | None = None,
    **scheduling: Any,
) -> str:
    """A GpuPool and a ModelPool for these model directories.

    `origins`: whose web pages may use the gateway. `adapters`: of some of the models, by model and name.
    """
    roles: dict[str, Any] = {"engines": {"replicas": engines}} if engines else {}
    if prefill:
        roles |= {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}}
    memory = {"deviceBytes": device, "slabSize": "64Ki", "hostModelCache": host_cache, "hostKv": host_kv}
    kept: dict[str, Any] = {"batches": {"folder": str(batches)}} if batches else {}
    if origins:
        kept["gateway"] = {"corsOrigins": list(origins)}
    pool: dict[str, Any] = {
        **_head("GpuPool"),
        "spec": {**roles, **kept, "backend": backend, "memory": memory, "scheduling": {"qMax": "200ms", **scheduling}},
    }
    served = [_served(name, path, adapters and adapters.get(name)) for name, path in models.items()]
    if adapters:
        pool["spec"]["adapters"] = {"maxRank": 8, "maxLoaded": 2, "memory": "1Mi"}
    models_pool = {**_head("ModelPool"), "spec": {"gpuPoolRef": {"name": "test"}, "models": served}}
    return yaml.safe_dump_all([pool, models_pool])


def _served(name: str, path: Path, adapters: Mapping[str, Path] | None) -> dict[str, Any]:
    entry = {"name": name, "source": {"hostPath": str(path)}, "slo": {"ttft": "5s", "tbt": "200ms"}}
    some = [{"name": one, "source": {"hostPath": str(at)}} for one, at in (adapters or {}).items()]
    return entry | ({"adapters": some} if some else {})


def _head(kind: str) -> dict[str, Any]:
    return {"apiVersion": "serving.aegaeon.io/v1alpha1", "kind": kind, "metadata": {"name": "test"}}


@contextmanager
def running(text: str, record: Path | None = None) -> Iterator[Stack]:
    """`aegaeon up` on these manifests; when all went well, nothing of it may be left behind."""
    with TemporaryDirectory(prefix="aegaeon-manifests-") as folder:
        (Path(folder) / "pool.yaml").write_text(text)
        with Stack(Path(folder), port=free_port(), record=record) as stack:
            yield stack
    assert stack.leftovers == []
    assert stack.exit_status == 0
