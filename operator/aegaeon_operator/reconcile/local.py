"""A pool on one machine: one scheduler, one gateway, and a sidecar for every engine asked for.

The config files are the contract with the processes (docs/design/processes.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aegaeon_operator.reconcile.pods import AttachedProbe, DesiredPod, HttpProbe, Json, PodRole, SocketProbe
from aegaeon_operator.reconcile.tenants import tenants_file
from aegaeon_operator.spec import Pool, ServedModel
from aegaeon_operator.spec.resources import GpuPoolSpec, Source

_MAX_BODY_BYTES = 16 << 20
_HEARTBEAT_S = 0.5
_HEARTBEAT_TIMEOUT_S = 2


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """What the machine, not the manifests, decides. `port` overrides the manifest's."""

    run_folder: Path
    segments: Path
    python: str
    node: str = "local"
    host: str = "127.0.0.1"
    port: int | None = None
    record: Path | None = None
    constants: Path | None = None
    hub_cache: Path | None = None

    @property
    def scheduler_socket(self) -> Path:
        return self.run_folder / "scheduler.sock"

    @property
    def scheduler_target(self) -> str:
        return f"unix:{self.scheduler_socket}"

    @property
    def sink_target(self) -> str:
        return f"unix:{self.run_folder / 'sink.sock'}"


def reconcile(pool: Pool, plan: LocalPlan) -> tuple[DesiredPod, ...]:
    """The pods of a pool in the order of starting: scheduler, sidecars, gateway."""
    spec = pool.gpu_pool.spec
    sidecars = tuple(_sidecar(spec, plan, *engine) for engine in _engines(spec))
    return (_scheduler(pool, plan), *sidecars, _gateway(pool, plan))


def gateway_port(pool: Pool, plan: LocalPlan) -> int:
    """The port that clients use."""
    return plan.port if plan.port is not None else pool.model_pools[0].spec.gateway.port


def _engines(spec: GpuPoolSpec) -> Iterator[tuple[str, str, str]]:
    """(instance, role, device) of every engine; GPUs are given out in order."""
    wanted = (
        ("engine", "unified", spec.engines),
        ("prefill", "prefill", spec.prefill),
        ("decode", "decode", spec.decode),
    )
    kind, _, first = spec.accelerator.device.partition(":")
    count = 0
    for name, role, replicas in wanted:
        for index in range(replicas.replicas if replicas else 0):
            yield f"{name}-{index}", role, kind if not first else f"{kind}:{int(first) + count}"
            count += 1


def _pod(
    name: str, role: PodRole, module: str, config: Json, plan: LocalPlan
) -> tuple[str, PodRole, tuple[str, ...], Json, Path]:
    file = plan.run_folder / f"{name}.json"
    return name, role, (plan.python, "-m", module, "--config", str(file)), config, file


def _scheduler(pool: Pool, plan: LocalPlan) -> DesiredPod:
    scheduling = pool.gpu_pool.spec.scheduling
    config: Json = {
        "listen": plan.scheduler_target,
        "pool": pool.gpu_pool.metadata.name,
        "policy": {
            "name": scheduling.policy,
            "q_max_s": scheduling.q_max,
            "max_gpsize": scheduling.max_group_size,
            "min_stay_s": scheduling.min_stay,
        },
        "models": [_model(model) for model in pool.models],
        "constants": _text(plan.constants),
        "record": _text(plan.record),
        "heartbeat_timeout_s": _HEARTBEAT_TIMEOUT_S,
        "hold_s": scheduling.hold,
        "admission": scheduling.admission,
        "metrics_listen": f"{plan.host}:{scheduling.metrics_port}" if scheduling.metrics_port else None,
    }
    return DesiredPod(
        *_pod("scheduler", PodRole.SCHEDULER, "aegaeon_scheduler", config, plan),
        probe=SocketProbe(plan.scheduler_socket),
    )


def _model(model: ServedModel) -> Json:
    return {
        "name": model.name,
        "source": _source(model.source),
        "max_model_len": model.max_model_len or 0,
        "ttft_s": model.slo.ttft,
        "tbt_s": model.slo.tbt,
        "tier": model.tier,
        "weight": model.weight,
    }


def _source(source: Source) -> Json:
    if source.hugging_face:
        return {"hub": source.hugging_face.model_dump()}
    if source.s3:
        return {"s3": source.s3.model_dump()}
    if source.http:
        return {"http": source.http.model_dump()}
    return {"directory": source.host_path}


def _sidecar(spec: GpuPoolSpec, plan: LocalPlan, instance: str, role: str, device: str) -> DesiredPod:
    memory, tuning = spec.memory, spec.tuning
    config: Json = {
        "instance": instance,
        "node": plan.node,
        "role": role,
        "scheduler": plan.scheduler_target,
        "backend": spec.backend,
        "device": device,
        "dtype": spec.accelerator.dtype,
        "memory": {
            "device_bytes": memory.device_bytes,
            "slab_bytes": memory.slab_size,
            "host_kv_bytes": memory.host_kv,
            "host_cache_bytes": memory.host_model_cache,
            "stage_chunk_bytes": memory.stage.chunk,
            "stage_depth": memory.stage.depth,
            "prefix_reuse": memory.prefix_reuse,
        },
        "disk": {"folder": memory.disk.path, "budget_bytes": memory.disk.size} if memory.disk else {},
        "segments": str(plan.segments),
        "threads": tuning.threads,
        "max_batch": tuning.max_batch,
        "prefill_chunk_tokens": tuning.prefill_chunk_tokens,
        "lease_s": tuning.lease,
        "heartbeat_s": _HEARTBEAT_S,
        "drain_s": 0.0,  # it ends with the whole run
        "hub_cache": _text(plan.hub_cache),
    }
    return DesiredPod(
        *_pod(instance, PodRole.SIDECAR, "aegaeon_sidecar", config, plan),
        probe=AttachedProbe(plan.scheduler_target, instance),
        depends=("scheduler",),
        environment={"OMP_NUM_THREADS": str(tuning.threads)},
    )


def _gateway(pool: Pool, plan: LocalPlan) -> DesiredPod:
    port = gateway_port(pool, plan)
    tenants = tenants_file(pool)
    file = plan.run_folder / "tenants.json"
    config: Json = {
        "name": "gateway",
        "listen": f"{plan.host}:{port}",
        "scheduler": plan.scheduler_target,
        "sink": plan.sink_target,
        "max_body_bytes": _MAX_BODY_BYTES,
        "hub_cache": _text(plan.hub_cache),
        "fetched": str(plan.run_folder / "tokenizers"),
        "hold_s": pool.gpu_pool.spec.scheduling.hold,
        "tenants": str(file) if tenants else None,
    }
    return DesiredPod(
        *_pod("gateway", PodRole.GATEWAY, "aegaeon_gateway", config, plan),
        probe=HttpProbe(plan.host, port, "/health"),
        depends=("scheduler",),
        files={file: tenants} if tenants else {},
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
