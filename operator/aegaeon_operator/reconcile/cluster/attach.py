"""Attachment of ModelPools to a GpuPool: served models, their tenants, and reasons for refusals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TypeVar

from aegaeon_operator.reconcile.cluster.applied_secrets import AppliedSecrets
from aegaeon_operator.reconcile.cluster.facts import Json, Live, Observed, Refusal
from aegaeon_operator.reconcile.cluster.memo import Memo
from aegaeon_operator.reconcile.cluster.names import CREDENTIALS
from aegaeon_operator.reconcile.cluster.secrets import entry, missing
from aegaeon_operator.reconcile.cluster.shards import Shards
from aegaeon_operator.reconcile.processes import quota_entry
from aegaeon_operator.spec.base import SecretRef
from aegaeon_operator.spec.crosscheck import allows
from aegaeon_operator.spec.model_pool import Adapter
from aegaeon_operator.spec.resources import GpuPool, ModelPool, Quota, ServedModel, Source
from aegaeon_operator.spec.sources import Guarded
from aegaeon_operator.spec.tenancy import Claim, Problem, claims, contradictions, hashes_of, shared_keys
from aegaeon_proto.backends import having

_LONGEST_ENTRY = 253
_NO_QUOTA = Quota()
Named = TypeVar("Named", ServedModel, Adapter)


@dataclass(slots=True)
class Attached:
    """The served models. `names`: owner of each model and adapter. `refused`: refusal by ModelPool (uid), total or
    partial; `failed`: reason by ModelPool and name. `credentials`: content by file; `room`: their shards. `access`: by
    ModelPool, its document of tenants. `written`: content that the pool's Secrets already have. `memo`: of decisions
    about the same pool."""

    models: dict[str, tuple[Live[ModelPool], ServedModel]] = field(default_factory=dict)
    names: dict[str, Live[ModelPool]] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    credentials: dict[str, str] = field(default_factory=dict)
    room: Shards = field(default_factory=Shards)
    access: dict[str, Json] = field(default_factory=dict)
    written: AppliedSecrets = field(default_factory=AppliedSecrets)
    memo: Memo = field(default_factory=Memo, compare=False)
    _of_owner: dict[str, tuple[list[ServedModel], list[str]]] = field(default_factory=dict)

    def take(self, owner: Live[ModelPool], model: ServedModel) -> None:
        """Add a served model with its served adapters."""
        self.models[model.name] = (owner, model)
        self._of_owner.setdefault(owner.uid, ([], []))[0].append(model)

    def name(self, owner: Live[ModelPool], name: str) -> None:
        """Reserve a name of a model or adapter for its ModelPool."""
        self.names[name] = owner
        self._of_owner.setdefault(owner.uid, ([], []))[1].append(name)

    def models_of(self, uid: str) -> list[ServedModel]:
        """Return the served models of a ModelPool."""
        return self._of_owner.get(uid, ([], []))[0]

    def names_of(self, uid: str) -> list[str]:
        """Return the names of a ModelPool's served models and adapters."""
        return self._of_owner.get(uid, ([], []))[1]

    def withdraw(self, pool: Live[ModelPool], why: Refusal) -> None:
        """Remove all models of a ModelPool again."""
        models, names = self._of_owner.pop(pool.uid)
        for model in models:
            del self.models[model.name]
        for name in names:
            del self.names[name]
        self.refused[pool.uid] = why

    def refuse(self, uid: str, why: Refusal) -> None:
        """Add a problem of a ModelPool: the reason is the first problem's, the message lists all."""
        before = self.refused.get(uid)
        self.refused[uid] = Refusal(before.reason, f"{before.message}; {why.message}") if before else why

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """The served models by name, independent of the order of ModelPools."""
        return tuple(self.models[name][1] for name in sorted(self.models))


def attach(observed: Observed, memo: Memo | None = None) -> Attached:
    """Attach ModelPools, the oldest first: it keeps a name that several use."""
    written = AppliedSecrets.of(observed) if observed.unreadable else AppliedSecrets()
    attached = Attached(written=written, memo=memo or Memo())
    for pool in sorted(observed.model_pools, key=lambda pool: pool.age):
        refusal = _refusal(observed, pool)
        if refusal:
            attached.refuse(pool.uid, refusal)
        elif pool.value and observed.gpu_pool and observed.gpu_pool.value:
            _take(observed, observed.gpu_pool.value, pool, attached)
    attached.access = dict(_access(observed, attached))
    return attached


def _refusal(observed: Observed, pool: Live[ModelPool]) -> Refusal | None:
    """Return the refusal of a ModelPool as a whole; None: it is accepted."""
    where = f"GpuPool {observed.key.name} in namespace {observed.key.namespace}"
    if pool.value is None:
        return Refusal("Invalid", "; ".join(pool.problems))
    if observed.gpu_pool is None:
        return Refusal("GpuPoolNotFound", f"there is no {where}; create it, or correct gpuPoolRef")
    if observed.gpu_pool.value is None:
        return Refusal("GpuPoolInvalid", f"{where} is invalid: {'; '.join(observed.gpu_pool.problems)}")
    if not allows(observed.gpu_pool.value, pool.namespace):
        return Refusal(
            "NamespaceNotAllowed", f"{where} does not allow namespace {pool.namespace}; add it to its allowedNamespaces"
        )
    return None


def _take(observed: Observed, gpu_pool: GpuPool, pool: Live[ModelPool], attached: Attached) -> None:
    assert pool.value is not None
    for model in pool.value.spec.models:
        usable = _taken(observed, gpu_pool, pool, model, attached)
        if usable is not None:
            checked = [_taken(observed, gpu_pool, pool, adapter, attached) for adapter in model.adapters]
            adapters = tuple(adapter for adapter in checked if adapter is not None)
            unchanged = adapters == usable.adapters
            attached.take(pool, usable if unchanged else usable.model_copy(update={"adapters": adapters}))


def _taken(
    observed: Observed, gpu_pool: GpuPool, pool: Live[ModelPool], model: Named, attached: Attached
) -> Named | None:
    """Return a model or adapter with the paths of the pods; None after noting the refusal."""
    holder = attached.names.get(model.name)
    usable, problem = None, None
    if holder:
        other = f"{holder.namespace}/{holder.name}"
        text = f"{model.name} is served by ModelPool {other}, which is older; rename the model"
        problem = Refusal("NameConflict", text if holder is not pool else f"{model.name} is a duplicate; rename one")
    elif isinstance(model, Adapter) and gpu_pool.spec.adapters is None:
        text = f"{model.name}: the GpuPool has no spec.adapters (backend {having('adapters')}); add it"
        problem = Refusal("AdaptersNotServed", text)
    else:
        usable, problem = _usable(observed, gpu_pool, pool, model, attached)
    if problem:
        attached.refuse(pool.uid, problem)
        attached.failed[pool.uid, model.name] = problem.message
    else:
        attached.name(pool, model.name)
    return usable


def _usable(
    observed: Observed, gpu_pool: GpuPool, pool: Live[ModelPool], model: Named, attached: Attached
) -> tuple[Named | None, Refusal | None]:
    """Return the model with the paths of the pods, or the refusal."""
    source = model.source
    if source.needs_disk and gpu_pool.spec.memory.disk is None:
        return None, Refusal("DiskMissing", f"{model.name} needs a disk tier; add spec.memory.disk to the GpuPool")
    if source.host_path is not None:
        path = _inside(gpu_pool.spec.volumes.models and gpu_pool.spec.volumes.models.path, source.host_path)
        if path is None:
            return None, Refusal(
                "HostPathNotAllowed",
                f"{model.name}: {source.host_path} is not inside the GpuPool's volumes.models.path"
                if gpu_pool.spec.volumes.models
                else f"{model.name}: hostPath needs volumes.models in the GpuPool",
            )
        return _with_source(pool, model, source, {"host_path": path}, attached.memo), None
    if source.guarded:
        return _guarded(observed, pool, model, source.guarded, attached)
    return model, None


def _guarded(
    observed: Observed, pool: Live[ModelPool], model: Named, guarded: Guarded, attached: Attached
) -> tuple[Named | None, Refusal | None]:
    """Return the model with the credentials from its own namespace as a file of the pods, or the refusal."""
    if guarded.credentials_file:  # a path could name other tenants' credentials in the pods
        text = f"{model.name}: credentialsFile is for `aegaeon up` only; set credentialsSecretRef"
        return None, Refusal("CredentialsFileNotHere", text)
    ref = guarded.credentials_secret_ref
    if ref is None:
        return model, None
    file = _file_name(pool.namespace, ref)
    content = entry(observed, pool, ref)
    if content is None and (pool.namespace, ref.name) in observed.unreadable:
        content = attached.written.credentials.get(file)
    if content is None:
        reason, why = missing(observed, pool, ref)
        return None, Refusal(reason, f"{model.name}: {why}")
    if file not in attached.credentials:
        shard = attached.room.place(pool.namespace, file, len(file) + len(content.encode()))
        if isinstance(shard, Refusal):
            return None, Refusal(shard.reason, f"{model.name}: Secret {ref.name}: {shard.message}")
        attached.credentials[file] = content
    changed = guarded.model_copy(update={"credentials_file": f"{CREDENTIALS}/{file}", "credentials_secret_ref": None})
    place = next(name for name in ("hugging_face", "s3", "http") if getattr(model.source, name))
    return _with_source(pool, model, model.source, {place: changed}, attached.memo), None


def _file_name(namespace: str, ref: SecretRef) -> str:
    """Return a unique key for the pool's Secret, within the limit of its length: a long name must not block the others.

    A Secret's name may contain dots; an underscore can only be in the name of its entry.
    """
    between = "_" if "." in ref.name else "."
    name = between.join((namespace, ref.name, ref.key))
    return name if len(name) <= _LONGEST_ENTRY else hashlib.sha256(name.encode()).hexdigest()


def _with_source(pool: Live[ModelPool], model: Named, source: Source, changes: dict[str, object], memo: Memo) -> Named:
    """Return the model with changes of its source, the same object for as long as both are the same."""

    def copied() -> Named:
        return model.model_copy(update={"source": source.model_copy(update=changes)})

    return memo.of(("model", pool.uid, model.name), (model, changes), copied)


@lru_cache(4096)  # called for each model in each reconcile
def _inside(folder: str | None, host_path: str) -> str | None:
    """Return the absolute path if it is below the models' folder, without `..`; else None."""
    if folder is None or host_path.startswith("~") or not host_path.isprintable():
        return None
    path = PurePosixPath(folder) / host_path
    return str(path) if ".." not in PurePosixPath(host_path).parts and path.is_relative_to(folder) else None


# ---- tenants -------------------------------------------------------------------------------------------------------


def _access(observed: Observed, attached: Attached) -> Iterator[tuple[str, Json]]:
    """Yield the document of Admin.SetTenants for each ModelPool (uid) with served models. A pool without tenants is
    open; a pool whose keys are missing is closed."""
    for pool, claimed in _claimed(observed, attached):
        served = set(attached.names_of(pool.uid))
        if not served or pool.value is None:
            continue
        quotas = {
            model.name: quota_entry(model.quota) for model in attached.models_of(pool.uid) if model.quota != _NO_QUOTA
        }
        yield (
            pool.uid,
            {
                "tenants": [_tenant(claim, hashes, served) for claim, hashes in claimed],
                "open_models": [] if pool.value.spec.tenants else sorted(served),
                "model_quotas": quotas,
            },
        )


def _tenant(claim: Claim, hashes: list[str], served: set[str]) -> Json:
    """Return the entry of a tenant; `served`: the served names of its ModelPool."""
    tenant = claim.tenant
    return {
        "name": claim.known_as,
        "models": sorted(served.intersection(tenant.models or served)),
        "key_sha256": sorted(hashes),
        "quota": quota_entry(tenant.quota),
        **({"strict": True} if tenant.strict else {}),
    }


Claimed = tuple[Live[ModelPool], list[tuple[Claim, list[str]]]]


def _claimed(observed: Observed, attached: Attached) -> list[Claimed]:
    """Return the tenants of each ModelPool, oldest first, with the keys that no other tenant has; note the problems.

    A tenant that contradicts an older ModelPool's is left out: the older one keeps keys and quota.
    """
    pools = [pool for pool in sorted(observed.model_pools, key=lambda pool: pool.age) if not _refusal(observed, pool)]
    by_claim = {
        claim: pool
        for pool in pools
        if pool.value
        for claim in claims(observed.key.namespace, pool.value, f"ModelPool {pool.namespace}/{pool.name}")
    }
    problems = list(contradictions(list(by_claim)))
    conflicts = {problem.claim for problem in problems if problem.reason == "TenantConflict"}
    keys: dict[Claim, list[str]] = {}
    for claim, pool in by_claim.items():
        if claim not in conflicts:
            keys[claim], problem = _keys(observed, pool, claim, attached.written)
            problems += [problem] if problem else []
    shared = list(shared_keys(list(keys.items())))
    for problem in [*problems, *dict.fromkeys(problem for problem, _ in shared)]:
        attached.refuse(by_claim[problem.claim].uid, Refusal(problem.reason, problem.text))
    for problem, key in shared:
        keys[problem.claim].remove(key)
    of_pool: dict[str, list[tuple[Claim, list[str]]]] = {}
    for claim, hashes in keys.items():
        of_pool.setdefault(by_claim[claim].uid, []).append((claim, hashes))
    return [(pool, of_pool.get(pool.uid, [])) for pool in pools]


def _keys(
    observed: Observed, pool: Live[ModelPool], claim: Claim, written: AppliedSecrets
) -> tuple[list[str], Problem | None]:
    """Return the hashes of a tenant's keys, or the problem."""
    ref, who = claim.tenant.key_secret_ref, f"tenant '{claim.tenant.name}'"
    if ref is None:
        return [], Problem(
            claim, "KeyFileNotHere", claim.place, f"{who}: keyFile is for `aegaeon up` only; set keySecretRef"
        )
    content = entry(observed, pool, ref)
    if content is None:
        is_unreadable = (pool.namespace, ref.name) in observed.unreadable
        if is_unreadable and (before := written.hashes.get(claim.known_as)):
            return before, None
        reason, why = missing(observed, pool, ref)
        return [], Problem(claim, reason, claim.place, f"{who}: {why}")
    keys = hashes_of(content)
    if not keys:
        return [], Problem(claim, "SecretEmpty", claim.place, f"{who}: entry {ref.key} of Secret {ref.name} has no key")
    return list(dict.fromkeys(keys)), None
