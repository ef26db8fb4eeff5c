"""The desired objects of a pool, and the catalog and tenants for its scheduler."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from aegaeon_operator.reconcile.cluster.attach import Attached, attach
from aegaeon_operator.reconcile.cluster.egress import egress_entry
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Key, Live, Observed, Refusal
from aegaeon_operator.reconcile.cluster.memo import Memo
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
from aegaeon_operator.reconcile.cluster.platform import Platform
from aegaeon_operator.reconcile.cluster.pods import ENGINE_DRAIN_S, GATEWAY_DRAIN_S, WITHDRAW_S
from aegaeon_operator.reconcile.cluster.policies import policies
from aegaeon_operator.reconcile.cluster.routes import routes
from aegaeon_operator.reconcile.cluster.secret_files import (
    CREATED,
    Part,
    compact,
    config_files,
    credential_secrets,
    least_characters,
    model_secrets,
    secret,
)
from aegaeon_operator.reconcile.cluster.shards import Shards
from aegaeon_operator.reconcile.cluster.workloads import engine_names, workloads
from aegaeon_operator.reconcile.processes import (
    batches_entry,
    gateway_settings,
    model_entry,
    scheduler_settings,
    sidecar_settings,
    source_entry,
)
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec, ModelPool, ServedModel, Source
from aegaeon_proto.parts import joined

# Children that `kube` creates, since their content is random; they are never leftovers.
_NOT_DECIDED = ("ca", PREFIX, *sorted({certificates(role) for role in CERTIFICATES.values()}))
# Where a pool has no disk tier, an engine keeps models of the hub in its pod, below the tier's default budget.
_NO_TIME = datetime.min.replace(tzinfo=UTC)
_NO_CONTENT: Json = {}
_HUB_DISK: Json = {"disk": {"folder": f"{CACHE}/hub"}}


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state. `leftovers`: owned objects that are no longer desired. `catalog`, `tenants`, `start_s` and
    `engines` (names) are for the scheduler; `mark` is their fingerprint."""

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
    """A cache of a pool's desired state, valid until one of its inputs changes."""

    _about: Observed | None = None
    _memo: Memo = field(default_factory=Memo)
    _decided: Desired = field(default_factory=lambda: Desired(Attached()))

    def of(self, observed: Observed) -> Desired:
        """Return `desired` of what was observed."""
        about = _decisive(observed)
        if about != self._about:
            self._memo.start_pass()
            self._about, self._decided = about, desired(about, self._memo)
        return self._decided


def _decisive(observed: Observed) -> Observed:
    """Return only the inputs of `desired`, without the observed progress.

    Of children only the keys count; while a Secret cannot be read, also their content (applied_secrets.py).
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


def desired(observed: Observed, memo: Memo | None = None) -> Desired:
    """Return the desired state; without a valid GpuPool nothing is changed: garbage collection removes its children."""
    memo = memo or Memo()
    attached = attach(observed, memo)
    pool = observed.gpu_pool
    if pool is None or pool.value is None:
        return Desired(attached)
    spec = pool.value.spec
    configs = _configs(observed.key, pool, spec, observed.platform)
    parts = _placed(observed, spec, attached, memo)
    served = joined(part.content for part in parts)
    models = attached.served
    accepted = [pool for pool in observed.model_pools if attached.models_of(pool.uid)]
    objects = (
        secret(observed.key, pool, "config", config_files(configs, served, parts)),
        *model_secrets(observed.key, pool, parts),
        *credential_secrets(observed.key, pool, attached),
        *([secret(observed.key, pool, "redis", dict(observed.redis))] if observed.redis else []),
        *workloads(observed, pool, spec, _restarting(configs)),
        *policies(observed, pool, spec, models),
        *picker(observed, pool, spec),
        *routes(observed.key, pool, spec, accepted),
    )
    manifests = tuple(_marked(manifest) for manifest in objects)
    present = {ChildKey.of(manifest) for manifest in manifests}
    kept = {ChildKey("Secret", observed.key.namespace, child(observed.key, part)) for part in _NOT_DECIDED}
    staying = {child(observed.key, COMPONENTS[role]) for role in observed.superseded}
    leftovers = tuple(sorted(key for key in set(observed.children) - present - kept if key.name not in staying))
    catalog, tenants, start_s = tuple(served["models"]), served["tenants"], spec.hold_start_s
    engines = engine_names(observed, spec)
    mark = fingerprint([hashlib.sha256("".join(part.text for part in parts).encode()).hexdigest(), start_s, engines])
    return Desired(attached, manifests, leftovers, catalog, tenants, start_s, engines, mark)


def _restarting(configs: dict[str, Json]) -> dict[str, Json]:
    """Return the parts of the configurations whose change restarts the pods; running schedulers receive the others."""
    without = {name: value for name, value in configs[SCHEDULERS[0]].items() if name != "start_s"}
    return configs | dict.fromkeys(SCHEDULERS, without)


def _placed(observed: Observed, spec: GpuPoolSpec, attached: Attached, memo: Memo) -> list[Part]:
    """Return each ModelPool's models and tenants with their shard; refuse a ModelPool that does not fit in a Secret."""
    room, parts = Shards(), []
    for pool in observed.model_pools:
        served = attached.models_of(pool.uid)
        if not served or pool.value is None:
            continue
        inputs = (spec, served, pool.value.prefix_share, pool.created, attached.access[pool.uid])
        part = memo.of(("part", pool.uid), inputs, partial(_part, spec, served, pool, inputs[-1]))
        shard = room.place(pool.namespace, pool.name, len(part.text) + 1)
        if isinstance(shard, Refusal):
            attached.withdraw(pool, shard)
        else:
            parts.append(part._replace(shard=shard))
    return parts


def _part(spec: GpuPoolSpec, served: list[ServedModel], pool: Live[ModelPool], access: Json) -> Part:
    """Return a ModelPool's entries of the Secrets, in the first shard."""
    share = pool.value.prefix_share if pool.value else ""
    models = [_model(spec, model, share) | {CREATED: pool.created_s} for model in served]
    content = {"models": models, "tenants": access}
    return Part(content, compact(content), least_characters(models))


def _model(spec: GpuPoolSpec, model: ServedModel, prefix_share: str) -> Json:
    """Return a model's entry in the catalog; engines read files of the nodes only below the GpuPool's models folder."""
    entry = model_entry(model, prefix_share)
    entry["source"] = _within(spec, model.source)
    entry["adapters"] = [{"name": adapter.name, "source": _within(spec, adapter.source)} for adapter in model.adapters]
    return entry


def _within(spec: GpuPoolSpec, source: Source) -> Json:
    if source.host_path is not None and spec.volumes.models is not None:
        return {"directory": source.host_path, "root": spec.volumes.models.path}
    return source_entry(source)


def _configs(key: Key, pool: Live[GpuPool], spec: GpuPoolSpec, platform: Platform) -> dict[str, Json]:
    """Return the configuration by component, without models and tenants, which change while pods run."""
    first, *standbys = (scheduler_target(key, component) for component in SCHEDULERS)
    targets: Json = {"scheduler": first, "standbys": standbys}
    configs: dict[str, Json] = {
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
    return configs | engines | dict.fromkeys(SCHEDULERS, configs["scheduler"])


def _engine_config(role: str, component: str, spec: GpuPoolSpec, platform: Platform, targets: Json) -> Json:
    return {
        **sidecar_settings(role, spec),
        "sources": {"allowed": list(spec.allowed_sources), **egress_entry(spec)},
        "instance": component,
        "node": "unknown",
        **targets,
        "device": "cpu" if spec.accelerator.device == "cpu" else "cuda:0",  # the first GPU allocated to the pod
        "segments": SEGMENTS,
        **({} if spec.memory.disk else _HUB_DISK),
        "tls": TLS,
        "metrics_listen": f"{platform.anywhere}:{ENGINE_METRICS}",
        "drain_s": ENGINE_DRAIN_S,
    }


def _batches(spec: GpuPoolSpec) -> Json:
    """Return the storage of files and batches."""
    store = spec.batches
    if store is None or store.folder:  # a folder is for `aegaeon up` only
        return {}
    has_credentials = store.s3 is not None and store.s3.credentials_secret_ref is not None
    return {"batches": batches_entry(store, BATCHES, f"{BATCH_KEYS}/credentials" if has_credentials else "")}


def _redis(platform: Platform) -> Json:
    """Return the Redis in which all gateways count quotas."""
    if platform.redis is None:
        return {}
    names = {"password": "redis_password_file", "ca.crt": "redis_ca_file"}
    return {"redis": platform.redis.url} | {names[file]: f"{REDIS}/{file}" for file in platform.redis.files}


def _marked(manifest: Json) -> Json:
    """Return a manifest with its fingerprint, so that a removed field is a change, too, for server-side apply.
    Secrets are compared as a whole; a fingerprint would disclose information about their content.
    """
    if manifest["kind"] == "Secret":
        return manifest
    metadata = {**manifest["metadata"], "annotations": {APPLIED: fingerprint(manifest)}}
    return {**manifest, "metadata": metadata}
