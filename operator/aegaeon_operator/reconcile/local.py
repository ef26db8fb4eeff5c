"""A pool on one machine: one scheduler, one gateway, and a sidecar for every engine.

The config files are the contract with the processes (docs/design/processes.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aegaeon_operator.reconcile.pods import AttachedProbe, DesiredPod, HttpProbe, Json, PodRole, SocketProbe
from aegaeon_operator.reconcile.processes import batches_entry, gateway_settings, scheduler_settings, sidecar_settings
from aegaeon_operator.reconcile.tenants import tenants_file
from aegaeon_operator.spec import Pool
from aegaeon_operator.spec.resources import GpuPoolSpec
from aegaeon_proto.outbound.policy import EVERYWHERE

PREFIX_SECRET = "prefix-secret"
"""a file in the run's folder, which is created before any process"""
_NAMES = {"unified": "engine", "prefill": "prefill", "decode": "decode"}
_DRAIN_S = 10.0  # of an engine that is removed while others run; less than the runner's grace period
_OPEN: Json = {"open_models": None}  # no model needs a key; the file exists so that it can change


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Settings of the machine. `port` overrides the manifest's. `share_gpu`: all engines use the GPUs of the first one,
    for a pool with roles on a machine with one GPU. `sockets`: a folder with a short path, as unix sockets need it."""

    run_folder: Path
    sockets: Path
    segments: Path
    python: str
    node: str = "local"
    host: str = "127.0.0.1"
    port: int | None = None
    record: Path | None = None
    constants: Path | None = None
    hub_cache: Path | None = None
    share_gpu: bool = False

    @property
    def scheduler_socket(self) -> Path:
        return self.sockets / "scheduler.sock"

    @property
    def scheduler_target(self) -> str:
        return f"unix:{self.scheduler_socket}"

    @property
    def admin_target(self) -> str:
        """Address of service Admin; a process that may open this socket may change the pool."""
        return f"unix:{self.sockets / 'admin.sock'}"

    @property
    def gateway_metrics(self) -> Path:
        """Socket of the gateway's metrics, which web pages cannot reach."""
        return self.sockets / "metrics.sock"

    @property
    def prefix_secret(self) -> Path:
        """File of the secret that separates tenants' KV caches."""
        return self.run_folder / PREFIX_SECRET

    @property
    def sink_target(self) -> str:
        return f"unix:{self.sockets / 'sink.sock'}"


def reconcile(pool: Pool, settings: LocalSettings) -> tuple[DesiredPod, ...]:
    """Return the pods of a pool in the order of starting: scheduler, sidecars, gateway."""
    spec = pool.gpu_pool.spec
    all_engines = tuple(engines(spec, settings.share_gpu))
    sidecars = tuple(_sidecar(spec, settings, engine, len(all_engines)) for engine in all_engines)
    return (_scheduler(pool, settings), *sidecars, _gateway(pool, settings))


def gateway_port(pool: Pool, settings: LocalSettings) -> int:
    """Return the port of the OpenAI API."""
    return settings.port if settings.port is not None else pool.model_pools[0].spec.gateway.port


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine of this machine; `on_demand`: beyond the first `replicas` of its role, started by the autoscaler."""

    name: str
    role: str
    device: str
    on_demand: bool


def engines(spec: GpuPoolSpec, share_gpu: bool = False) -> Iterator[Engine]:
    """Yield all possible engines; GPUs are assigned in order, or with `share_gpu` the first ones to all."""
    kind, _, first = spec.accelerator.device.partition(":")
    count = 0
    for role, bounds in spec.roles.items():
        at_first = min(max(bounds.replicas, bounds.min or 0), bounds.max or bounds.replicas)
        for index in range(bounds.max or bounds.replicas):
            device = kind if not first else f"{kind}:{int(first) + count}"
            yield Engine(f"{_NAMES[role]}-{index}", role, device, on_demand=index >= at_first)
            count += 0 if share_gpu else spec.accelerator.count


def _pod(
    name: str, role: PodRole, module: str, config: Json, settings: LocalSettings
) -> tuple[str, PodRole, tuple[str, ...], Json, Path]:
    file = settings.run_folder / f"{name}.json"
    return name, role, (settings.python, "-m", module, "--config", str(file)), config, file


def _scheduler(pool: Pool, settings: LocalSettings) -> DesiredPod:
    spec = pool.gpu_pool.spec
    port = spec.scheduling.metrics_port
    config: Json = {
        **scheduler_settings(pool.gpu_pool.metadata.name, spec, pool.model_pools),
        "listen": settings.scheduler_target,
        "ambient_egress": True,
        "admin_listen": settings.admin_target,
        "constants": _text(settings.constants),
        "record": _text(settings.record),
        "metrics_listen": f"{settings.host}:{port}" if port else None,
    }
    return DesiredPod(
        *_pod("scheduler", PodRole.SCHEDULER, "aegaeon_scheduler", config, settings),
        probe=SocketProbe(settings.scheduler_socket),
    )


def _sidecar(spec: GpuPoolSpec, settings: LocalSettings, engine: Engine, engine_count: int) -> DesiredPod:
    config: Json = {
        **sidecar_settings(engine.role, spec),
        "sources": {"allowed": _allowed(spec), "ambient_credentials": True},
        "instance": engine.name,
        "node": settings.node,
        "scheduler": settings.scheduler_target,
        "device": engine.device,
        "engines": engine_count if spec.tuning.threads is None else 0,
        "segments": str(settings.segments),
        "drain_s": _DRAIN_S if spec.roles[engine.role].max else 0.0,  # 0: it ends with the run
        "hub_cache": _text(settings.hub_cache),
    }
    return DesiredPod(
        *_pod(engine.name, PodRole.SIDECAR, "aegaeon_sidecar", config, settings),
        probe=AttachedProbe(settings.scheduler_target, engine.name),
        depends=("scheduler",),
        environment={"OMP_NUM_THREADS": str(spec.threads)},
        on_demand=engine.on_demand,
    )


def _gateway(pool: Pool, settings: LocalSettings) -> DesiredPod:
    port = gateway_port(pool, settings)
    tenants = tenants_file(pool) or _OPEN
    file = settings.run_folder / "tenants.json"
    config: Json = {
        **gateway_settings(pool.gpu_pool.spec),
        "allowed_sources": _allowed(pool.gpu_pool.spec),
        "ambient_credentials": True,
        "name": "gateway",
        "listen": f"{settings.host}:{port}",
        "scheduler": settings.scheduler_target,
        "sink": settings.sink_target,
        "hub_cache": _text(settings.hub_cache),
        "fetched": str(settings.run_folder / "tokenizers"),
        "tenants": str(file),
        "metrics_listen": f"unix:{settings.gateway_metrics}",
        "prefix_secret_file": str(settings.prefix_secret),
        **_batches(pool.gpu_pool.spec),
    }
    return DesiredPod(
        *_pod("gateway", PodRole.GATEWAY, "aegaeon_gateway", config, settings),
        probe=HttpProbe(settings.host, port, "/health"),
        depends=("scheduler",),
        files={file: tenants},
    )


def _batches(spec: GpuPoolSpec) -> Json:
    store = spec.batches
    if store is None or store.claim:  # a claim is for Kubernetes only
        return {}
    return {"batches": batches_entry(store, store.folder or "", store.s3.credentials_file if store.s3 else "")}


def _allowed(spec: GpuPoolSpec) -> list[str]:
    """Return the allowed sources; by default any server, since the manifests' author owns the machine."""
    return list(spec.allowed_sources or EVERYWHERE)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
