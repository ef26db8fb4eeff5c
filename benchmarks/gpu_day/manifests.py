"""Manifests of the running pool: three models, device memory for two of them, on one GPU (or one CPU)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from benchmarks.gpu_day.models import NAMES, weight_bytes
from benchmarks.gpu_day.where import Where

from aegaeon_operator.podrunner import look
from aegaeon_scheduler.core.domain import Slo

Roles = Literal["unified", "split"]
POLICIES: dict[Roles, str] = {"unified": "slack", "split": "paper"}
_NAME = "gpu-day"
_HOST_KV, _SPARE = 4 << 30, 8 << 30
_DEVICE, _HOST = 2.25, 3.05  # times a model's weights: two of the three and their KV; all of them
_LEAST_CACHE = 1 << 30  # models beyond it are read from disk at every load
_MEMORY = {"slabSize": "32Mi", "hostKv": _HOST_KV, "outsideSlabs": "3Gi"}
_SMALL_MEMORY = {"deviceBytes": "14Mi", "slabSize": "256Ki", "hostModelCache": "32Mi", "hostKv": "12Mi"}


def write_manifests(folder: Path, where: Where, roles: Roles, slo: Slo) -> None:
    """A GpuPool with engines of these roles, and a ModelPool whose models have this objective."""
    (folder / "gpupool.yaml").write_text(yaml.safe_dump(gpu_pool(where, roles), sort_keys=False), "utf-8")
    write_objective(folder, slo)


def write_objective(folder: Path, slo: Slo) -> None:
    """The ModelPool anew, its GpuPool as it is: what is free for that depends on what runs already."""
    (folder / "modelpool.yaml").write_text(yaml.safe_dump(_model_pool(slo), sort_keys=False), "utf-8")


def gpu_pool(where: Where, roles: Roles) -> dict[str, Any]:
    """As a manifest."""
    asked = ("engines",) if roles == "unified" else ("prefill", "decode")
    spec: dict[str, Any] = {
        "backend": "torch",
        "accelerator": {"device": where.device, "dtype": "float32" if where.small else "bfloat16"},
        **{role: {"replicas": 1} for role in asked},
        "memory": _SMALL_MEMORY if where.small else _memory(weight_bytes(where), len(asked)),
        "scheduling": {"policy": POLICIES[roles], "hold": "120s"},
        "tuning": {"threads": 1, "maxBatch": 16, "prefillChunkTokens": 256 if where.small else 2048},
    }
    return _manifest("GpuPool", spec)


def _memory(weights: int, engines: int) -> dict[str, Any]:
    """An 8B in bfloat16 has 16.1 GB of weights: two engines fit in 80 GB, with what is outside slabs."""
    device = int(_DEVICE * weights) >> 30 << 30
    return {**_MEMORY, "deviceBytes": device, "hostModelCache": _model_cache(engines, int(_HOST * weights))}


def _model_cache(engines: int, wanted: int) -> int:
    """Bytes for all three models, or what the machine's memory allows: the others are then read from disk.

    Raises SystemExit where not even _LEAST_CACHE is left.
    """
    machine = look(Path("/dev/shm"))
    free = min(machine.shared_memory_free, machine.memory_free - _SPARE) - engines * _HOST_KV
    if free < _LEAST_CACHE:
        shared, memory = machine.shared_memory_free >> 30, machine.memory_free >> 30
        raise SystemExit(
            f"/dev/shm has {shared} GiB free and memory {memory}: {engines} engines need {engines * _HOST_KV >> 30} "
            f"GiB for KV beside a host cache of {_LEAST_CACHE >> 30}; as root: mount -o remount,size=80G /dev/shm"
        )
    if free < wanted:
        sizes = f"{free / 2**30:.1f} GiB for the host cache, not {wanted / 2**30:.1f}"
        print(f"/dev/shm and memory leave {sizes}; mount -o remount,size=80G")
    return min(wanted, free)


def _model_pool(slo: Slo) -> dict[str, Any]:
    objective = {"ttft": f"{1000 * slo.ttft_s:.0f}ms", "tbt": f"{1000 * slo.tbt_s:.0f}ms"}
    models = [{"name": name, "source": {"hostPath": name}, "slo": objective} for name in NAMES]
    return _manifest("ModelPool", {"gpuPoolRef": {"name": _NAME}, "models": models})


def _manifest(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "serving.aegaeon.io/v1alpha1", "kind": kind, "metadata": {"name": _NAME}, "spec": spec}
