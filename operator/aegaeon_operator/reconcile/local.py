"""A pool on one machine: one scheduler, one gateway, and a sidecar for every engine asked for.

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
"""a file of the run's folder, which is there before any process"""
_NAMES = {"unified": "engine", "prefill": "prefill", "decode": "decode"}
_DRAIN_S = 10.0  # of an engine that is taken away while others go on; less than the runner's grace
_EVERYBODY: Json = {"open_models": None}  # every model needs no key; a file all the same, so that it may change


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """What the machine, not the manifests, decides. `port` overrides the manifest's. `share_gpu`: all engines take the
    GPUs that the first would take alone, for a pool with roles on a machine of one GPU. `sockets`: a folder of its own,
    since the path of a unix socket is short."""

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
        """Of service Admin: permission to open this socket's file is permission to change the pool."""
        return f"unix:{self.sockets / 'admin.sock'}"

    @property
    def gateway_metrics(self) -> Path:
        """Where the gateway serves its metrics: a socket, which web pages cannot reach."""
        return self.sockets / "metrics.sock"

    @property
    def prefix_secret(self) -> Path:
        """What keeps the KV cache of tenants apart."""
        return self.run_folder / PREFIX_SECRET

    @property
    def sink_target(self) -> str:
        return f"unix:{self.sockets / 'sink.sock'}"


def reconcile(pool: Pool, settings: LocalSettings) -> tuple[DesiredPod, ...]:
    """The pods of a pool in the order of starting: scheduler, sidecars, gateway."""
    spec = pool.gpu_pool.spec
    all_engines = tuple(engines(spec, settings.share_gpu))
    sidecars = tuple(_sidecar(spec, settings, engine, len(all_engines)) for engine in all_engines)
    return (_scheduler(pool, settings), *sidecars, _gateway(pool, settings))


def gateway_port(pool: Pool, settings: LocalSettings) -> int:
    """The port that clients use."""
    return settings.port if settings.port is not None else pool.model_pools[0].spec.gateway.port


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine of this machine; the first `replicas` of a role run from the start, the rest when they are needed."""

    name: str
    role: str
    device: str
    on_demand: bool


def engines(spec: GpuPoolSpec, share_gpu: bool = False) -> Iterator[Engine]:
    """All that there may be at a time; GPUs are given out in order, or with `share_gpu` the first ones to all."""
    kind, _, first = spec.accelerator.device.partition(":")
    count = 0
    for role, asked in spec.roles.items():
        at_first = min(max(asked.replicas, asked.min or 0), asked.max or asked.replicas)
        for index in range(asked.max or asked.replicas):
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


def _sidecar(spec: GpuPoolSpec, settings: LocalSettings, engine: Engine, engines_here: int) -> DesiredPod:
    config: Json = {
        **sidecar_settings(engine.role, spec),
        "sources": {"allowed": _allowed(spec), "ambient_credentials": True},
        "instance": engine.name,
        "node": settings.node,
        "scheduler": settings.scheduler_target,
        "device": engine.device,
        "engines": engines_here if spec.tuning.threads is None else 0,
        "segments": str(settings.segments),
        "drain_s": _DRAIN_S if spec.roles[engine.role].max else 0.0,  # 0: it ends with the whole run
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
    tenants = tenants_file(pool) or _EVERYBODY
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
    if store is None or store.claim:  # which there are on Kubernetes alone
        return {}
    return {"batches": batches_entry(store, store.folder or "", store.s3.credentials_file if store.s3 else "")}


def _allowed(spec: GpuPoolSpec) -> list[str]:
    """The author of the manifests owns the machine: without a list, its own servers are as good as any."""
    return list(spec.allowed_sources or EVERYWHERE)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
