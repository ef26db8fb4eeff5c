"""Everything that should exist for a pool, and what its scheduler should know."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from aegaeon_operator.reconcile.cluster.attach import Attached, attach
from aegaeon_operator.reconcile.cluster.egress import egress_entry
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Key, Live, Observed, Platform, Refusal
from aegaeon_operator.reconcile.cluster.names import (
    APPLIED,
    BATCH_KEYS,
    BATCHES,
    CACHE,
    CERTIFICATES,
    COMPONENTS,
    ENGINE_METRICS,
    GATEWAY_METRICS,
    GATEWAY_PORT,
    PREFIX,
    PREFIX_ENTRY,
    PREFIX_FOLDER,
    REDIS,
    SCHEDULER_ADMIN,
    SCHEDULER_METRICS,
    SCHEDULER_PORT,
    SCHEDULER_STATUS,
    SCHEDULERS,
    SEGMENTS,
    SINK_PORT,
    TLS,
    certificates,
    child,
    fingerprint,
    owned_by,
    scheduler_target,
)
from aegaeon_operator.reconcile.cluster.picker import picker
from aegaeon_operator.reconcile.cluster.pods import ENGINE_DRAIN_S, GATEWAY_DRAIN_S, WITHDRAW_S
from aegaeon_operator.reconcile.cluster.policies import policies
from aegaeon_operator.reconcile.cluster.routes import routes
from aegaeon_operator.reconcile.cluster.secret_files import (
    CREATED,
    compact,
    config_files,
    credential_secrets,
    model_secrets,
    secret,
)
from aegaeon_operator.reconcile.cluster.shards import Room
from aegaeon_operator.reconcile.cluster.workloads import engine_names, workloads
from aegaeon_operator.reconcile.processes import (
    batches_entry,
    gateway_settings,
    model_entry,
    scheduler_settings,
    sidecar_settings,
    source_entry,
)
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec, ServedModel, Source
from aegaeon_proto.parts import joined

# Made where decisions are carried out, since they are random: decided things never name them as leftovers.
_NOT_DECIDED = ("ca", PREFIX, *sorted({certificates(role) for role in CERTIFICATES.values()}))
# Where a pool has no disk tier, an engine keeps models of the hub in its pod, below the tier's default budget.
_NO_TIME = datetime.min.replace(tzinfo=UTC)
_NO_CONTENT: Json = {}
_HUB_DISK: Json = {"disk": {"folder": f"{CACHE}/hub"}}


@dataclass(frozen=True, slots=True)
class Desired:
    """`leftovers` are ours and wanted no more. `catalog`, `tenants`, `start_s` and `engines` (their names) are for the
    scheduler, `mark` is of these."""

    attached: Attached
    manifests: tuple[Json, ...] = ()
    leftovers: tuple[ChildKey, ...] = ()
    catalog: tuple[Json, ...] = ()
    tenants: Json | None = None
    start_s: float = 0.0
    engines: tuple[str, ...] = ()
    mark: str = ""


@dataclass(slots=True)
class Decisions:
    """Of one pool: what was decided last stands for as long as nothing changes that it depends on."""

    _about: Observed | None = None
    _decided: Desired = field(default_factory=lambda: Desired(Attached()))

    def of(self, observed: Observed) -> Desired:
        """As `desired` of the same."""
        about = _decisive(observed)
        if about != self._about:
            self._about, self._decided = about, desired(about)
        return self._decided


def _decisive(observed: Observed) -> Observed:
    """Without what nothing is decided of: how things stand, and how far they are.

    Of children it matters which there are; while a Secret cannot be read, also what they have (written.py).
    """
    children = observed.children if observed.unreadable else dict.fromkeys(observed.children, _NO_CONTENT)
    return replace(
        observed,
        children=children,
        now=_NO_TIME,
        scheduler=None,
        workloads={},
        pods=(),
        warnings={},
        unreachable="",
        keeps_standby="",
    )


def desired(observed: Observed) -> Desired:
    """Without a usable GpuPool nothing is changed: what it owns goes with it."""
    attached = attach(observed)
    pool = observed.gpu_pool
    if pool is None or pool.value is None:
        return Desired(attached)
    spec = pool.value.spec
    configs = _configs(observed.key, pool, spec, observed.platform)
    parts = _placed(observed, spec, attached)
    served = joined(part for part, _ in parts)
    models = attached.served
    accepted = [one for one in observed.model_pools if attached.models_of(one.uid)]
    said = (
        secret(observed.key, pool, "config", config_files(configs, served)),
        *model_secrets(observed.key, pool, parts),
        *credential_secrets(observed.key, pool, attached),
        *([secret(observed.key, pool, "redis", dict(observed.redis))] if observed.redis else []),
        *workloads(observed, pool, spec, _restarting(configs)),
        *policies(observed, pool, spec, models),
        *picker(observed, pool, spec),
        *routes(observed.key, pool, spec, sorted(accepted, key=lambda one: one.age)),
    )
    manifests = tuple(_marked(one) for one in said)
    wanted = {ChildKey.of(one) for one in manifests}
    kept = {ChildKey("Secret", observed.key.namespace, child(observed.key, part)) for part in _NOT_DECIDED}
    staying = {child(observed.key, COMPONENTS[role]) for role in observed.superseded}
    leftovers = tuple(sorted(one for one in set(observed.children) - wanted - kept if one.name not in staying))
    catalog, tenants, start_s = tuple(served["models"]), served["tenants"], spec.hold_start_s
    engines = engine_names(observed, spec)
    mark = fingerprint([served, start_s, engines])
    return Desired(attached, manifests, leftovers, catalog, tenants, start_s, engines, mark)


def _restarting(configs: dict[str, Json]) -> dict[str, Json]:
    """What of the configurations a change of restarts their pods: all that running schedulers do not receive."""
    without = {name: value for name, value in configs[SCHEDULERS[0]].items() if name != "start_s"}
    return configs | dict.fromkeys(SCHEDULERS, without)


def _placed(observed: Observed, spec: GpuPoolSpec, attached: Attached) -> list[tuple[Json, int]]:
    """Models and tenants of each ModelPool, and the shard that they lie in. What has no room is not served."""
    room, parts = Room(), []
    for pool in sorted(observed.model_pools, key=lambda one: one.age):
        served = attached.models_of(pool.uid)
        if not served or pool.value is None:
            continue
        models = [_model(spec, model, pool.value.prefix_share) | {CREATED: pool.created_s} for model in served]
        part = {"models": models, "tenants": attached.access[pool.uid]}
        place = room.place(pool.namespace, pool.name, len(compact(part)) + 1)
        if isinstance(place, Refusal):
            attached.withdraw(pool, place)
        else:
            parts.append((part, place))
    return parts


def _model(spec: GpuPoolSpec, model: ServedModel, prefix_share: str) -> Json:
    """A model of the catalog; files of the nodes stay within the folder that the GpuPool gives to models."""
    entry = model_entry(model, prefix_share)
    entry["source"] = _within(spec, model.source)
    entry["adapters"] = [{"name": one.name, "source": _within(spec, one.source)} for one in model.adapters]
    return entry


def _within(spec: GpuPoolSpec, source: Source) -> Json:
    if source.host_path is not None and spec.volumes.models is not None:
        return {"directory": source.host_path, "root": spec.volumes.models.path}
    return source_entry(source)


def _configs(key: Key, pool: Live[GpuPool], spec: GpuPoolSpec, platform: Platform) -> dict[str, Json]:
    """By component, without models and tenants: those come and go while pods run."""
    first, *others = (scheduler_target(key, component) for component in SCHEDULERS)
    targets: Json = {"scheduler": first, "standbys": others}
    found: dict[str, Json] = {
        "scheduler": {
            **scheduler_settings(key.name, spec, ()),
            **egress_entry(spec),
            "listen": f"{platform.anywhere}:{SCHEDULER_PORT}",
            "tls": TLS,
            "admin_listen": f"{platform.anywhere}:{SCHEDULER_ADMIN}",
            "status_listen": f"127.0.0.1:{SCHEDULER_STATUS}",  # for `kubectl port-forward`
            "metrics_listen": f"{platform.anywhere}:{SCHEDULER_METRICS}",
            "lease": {
                "namespace": key.namespace,
                "name": child(key, "scheduler"),
                "owner": owned_by(pool),
                "memory": "/tmp/term",
            },
        },
        "gateway": {
            **gateway_settings(spec),
            "name": "gateway",
            "listen": f"{platform.anywhere}:{GATEWAY_PORT}",
            **targets,
            "sink": f"{platform.anywhere}:{SINK_PORT}",
            "metrics_listen": f"{platform.anywhere}:{GATEWAY_METRICS}",
            "tls": TLS,
            "fetched": f"{CACHE}/tokenizers",
            "withdraw_s": WITHDRAW_S,
            "drain_s": GATEWAY_DRAIN_S,
            "tenants_by_scheduler": True,
            "prefix_secret_file": f"{PREFIX_FOLDER}/{PREFIX_ENTRY}",
            "http": {
                "cors_origins": list(spec.gateway.cors_origins),
                "trusted_proxies": list(spec.gateway.trusted_proxies),
            },
            **_redis(platform),
            **_batches(spec),
            **egress_entry(spec),
        },
    }
    engines = {name: _engine_config(role, name, spec, platform, targets) for role, name in COMPONENTS.items()}
    return found | engines | dict.fromkeys(SCHEDULERS, found["scheduler"])


def _engine_config(role: str, component: str, spec: GpuPoolSpec, platform: Platform, targets: Json) -> Json:
    return {
        **sidecar_settings(role, spec),
        "sources": {"allowed": list(spec.allowed_sources), **egress_entry(spec)},
        "instance": component,
        "node": "unknown",
        **targets,
        "device": "cpu" if spec.accelerator.device == "cpu" else "cuda:0",  # the first that the pod was given
        "segments": SEGMENTS,
        **({} if spec.memory.disk else _HUB_DISK),
        "tls": TLS,
        "metrics_listen": f"{platform.anywhere}:{ENGINE_METRICS}",
        "drain_s": ENGINE_DRAIN_S,
    }


def _batches(spec: GpuPoolSpec) -> Json:
    """Where files and batches are kept."""
    store = spec.batches
    if store is None or store.folder:  # which there is on one machine alone
        return {}
    given = store.s3 is not None and store.s3.credentials_secret_ref is not None
    return {"batches": batches_entry(store, BATCHES, f"{BATCH_KEYS}/credentials" if given else "")}


def _redis(platform: Platform) -> Json:
    """Where quotas are counted for all gateways together."""
    if platform.redis is None:
        return {}
    names = {"password": "redis_password_file", "ca.crt": "redis_ca_file"}
    return {"redis": platform.redis.url} | {names[file]: f"{REDIS}/{file}" for file in platform.redis.files}


def _marked(said: Json) -> Json:
    """With a mark of all that we say: what is said no more makes a difference, too, and server-side apply removes it.

    Secrets are compared as a whole, and a mark would tell of their content.
    """
    if said["kind"] == "Secret":
        return said
    metadata = {**said["metadata"], "annotations": {APPLIED: fingerprint(said)}}
    return {**said, "metadata": metadata}
