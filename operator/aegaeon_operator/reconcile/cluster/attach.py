"""Which ModelPools and models a GpuPool serves, who may use them, and why not the others."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TypeVar

from aegaeon_operator.reconcile.cluster.facts import Json, Live, Observed, Refusal
from aegaeon_operator.reconcile.cluster.names import CREDENTIALS
from aegaeon_operator.reconcile.cluster.shards import Room
from aegaeon_operator.reconcile.cluster.written import Written
from aegaeon_operator.reconcile.processes import quota_entry
from aegaeon_operator.reconcile.tenants import terms_entry
from aegaeon_operator.spec.base import SecretRef
from aegaeon_operator.spec.crosscheck import allows
from aegaeon_operator.spec.model_pool import Adapter
from aegaeon_operator.spec.resources import GpuPool, ModelPool, Quota, ServedModel, Source
from aegaeon_operator.spec.sources import Guarded
from aegaeon_operator.spec.tenancy import Claim, Problem, claims, contradictions, hashes_of, shared_keys, short_keys

_LONGEST_ENTRY = 253
Named = TypeVar("Named", ServedModel, Adapter)


@dataclass(slots=True)
class Attached:
    """What is served. `names`: who has each, model or adapter. `refused`: by ModelPool (uid) why not, or why not all;
    `failed`: by ModelPool and name. `credentials`: by file, `room` is of them. `access`: by ModelPool, the tenants'
    document of it alone. `written`: what the pool's Secrets say already."""

    models: dict[str, tuple[Live[ModelPool], ServedModel]] = field(default_factory=dict)
    names: dict[str, Live[ModelPool]] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    credentials: dict[str, str] = field(default_factory=dict)
    room: Room = field(default_factory=Room)
    access: dict[str, Json] = field(default_factory=dict)
    written: Written = field(default_factory=Written)
    _of_owner: dict[str, tuple[list[ServedModel], list[str]]] = field(default_factory=dict)

    def take(self, owner: Live[ModelPool], model: ServedModel) -> None:
        """A model that is served, with the adapters of it that are."""
        self.models[model.name] = (owner, model)
        self._of_owner.setdefault(owner.uid, ([], []))[0].append(model)

    def name(self, owner: Live[ModelPool], name: str) -> None:
        """Of a model or adapter that its ModelPool has and no other gets."""
        self.names[name] = owner
        self._of_owner.setdefault(owner.uid, ([], []))[1].append(name)

    def models_of(self, uid: str) -> list[ServedModel]:
        """Those of a ModelPool that are served."""
        return self._of_owner.get(uid, ([], []))[0]

    def names_of(self, uid: str) -> list[str]:
        """Of its models and adapters that are served."""
        return self._of_owner.get(uid, ([], []))[1]

    def withdraw(self, pool: Live[ModelPool], why: Refusal) -> None:
        """Serve nothing of a ModelPool after all."""
        models, names = self._of_owner.pop(pool.uid)
        for model in models:
            del self.models[model.name]
        for name in names:
            del self.names[name]
        self.refused[pool.uid] = why

    def refuse(self, uid: str, why: Refusal) -> None:
        """One more thing that is wrong with a ModelPool: the first gives the reason, the message has all."""
        before = self.refused.get(uid)
        self.refused[uid] = Refusal(before.reason, f"{before.message}; {why.message}") if before else why

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """In the order of their names: the order of ModelPools' arrival changes nothing."""
        return tuple(self.models[name][1] for name in sorted(self.models))


def attach(observed: Observed) -> Attached:
    """Oldest ModelPools first: they keep the names that several want."""
    found = Attached(written=Written.of(observed) if observed.unreadable else Written())
    for pool in sorted(observed.model_pools, key=lambda one: one.age):
        refusal = _refusal(observed, pool)
        if refusal:
            found.refuse(pool.uid, refusal)
        elif pool.value and observed.gpu_pool and observed.gpu_pool.value:
            _take(observed, observed.gpu_pool.value, pool, found)
    found.access = dict(_access(observed, found))
    return found


def _refusal(observed: Observed, pool: Live[ModelPool]) -> Refusal | None:
    """Why nothing of a ModelPool is served."""
    where = f"GpuPool {observed.key.name} in namespace {observed.key.namespace}"
    if pool.value is None:
        return Refusal("Invalid", "; ".join(pool.problems))
    if observed.gpu_pool is None:
        return Refusal("GpuPoolNotFound", f"there is no {where}; make it, or correct gpuPoolRef")
    if observed.gpu_pool.value is None:
        return Refusal("GpuPoolInvalid", f"{where} cannot be used: {'; '.join(observed.gpu_pool.problems)}")
    if not allows(observed.gpu_pool.value, pool.namespace):
        return Refusal(
            "NamespaceNotAllowed", f"{where} does not allow namespace {pool.namespace}; see its allowedNamespaces"
        )
    return None


def _take(observed: Observed, gpu_pool: GpuPool, pool: Live[ModelPool], found: Attached) -> None:
    assert pool.value is not None
    for model in pool.value.spec.models:
        usable = _taken(observed, gpu_pool, pool, model, found)
        if usable is not None:
            some = [_taken(observed, gpu_pool, pool, adapter, found) for adapter in model.adapters]
            adapters = tuple(one for one in some if one is not None)
            found.take(pool, usable.model_copy(update={"adapters": adapters}))


def _taken(observed: Observed, gpu_pool: GpuPool, pool: Live[ModelPool], one: Named, found: Attached) -> Named | None:
    """The model or adapter with paths as pods have them, or None, and why not is noted."""
    holder = found.names.get(one.name)
    usable, problem = None, None
    if holder:
        other = f"{holder.namespace}/{holder.name}"
        text = f"{one.name} is served by ModelPool {other}, which is older; rename it"
        problem = Refusal("NameConflict", text if holder is not pool else f"{one.name} is given twice; rename one")
    elif isinstance(one, Adapter) and gpu_pool.spec.adapters is None:
        problem = Refusal("AdaptersNotServed", f"{one.name}: the GpuPool has no spec.adapters, with backend vllm")
    else:
        usable, problem = _usable(observed, gpu_pool, pool, one, found)
    if problem:
        found.refuse(pool.uid, problem)
        found.failed[pool.uid, one.name] = problem.message
    else:
        found.name(pool, one.name)
    return usable


def _usable(
    observed: Observed, gpu_pool: GpuPool, pool: Live[ModelPool], model: Named, found: Attached
) -> tuple[Named | None, Refusal | None]:
    """The model with paths as pods have them, or why not."""
    source = model.source
    if source.needs_disk and gpu_pool.spec.memory.disk is None:
        return None, Refusal("DiskMissing", f"{model.name} is kept on disk; the GpuPool needs spec.memory.disk")
    if source.host_path is not None:
        path = _inside(gpu_pool.spec.volumes.models and gpu_pool.spec.volumes.models.path, source.host_path)
        if path is None:
            return None, Refusal(
                "HostPathNotAllowed",
                f"{model.name}: {source.host_path} is not inside the GpuPool's volumes.models.path"
                if gpu_pool.spec.volumes.models
                else f"{model.name}: hostPath needs volumes.models in the GpuPool",
            )
        return _with_source(model, source.model_copy(update={"host_path": path})), None
    if source.guarded:
        return _guarded(observed, pool, model, source.guarded, found)
    return model, None


def _guarded(
    observed: Observed, pool: Live[ModelPool], model: Named, guarded: Guarded, found: Attached
) -> tuple[Named | None, Refusal | None]:
    """The model with the credentials that its own namespace has for it, as a file of the pods."""
    if guarded.credentials_file:  # it would name files of the pods, other tenants' credentials among them
        text = f"{model.name}: credentialsFile is for `aegaeon up`; give credentialsSecretRef"
        return None, Refusal("CredentialsFileNotHere", text)
    ref = guarded.credentials_secret_ref
    if ref is None:
        return model, None
    file = _file_name(pool.namespace, ref)
    content = _entry(observed, pool, ref)
    if content is None and (pool.namespace, ref.name) in observed.unreadable:
        content = found.written.credentials.get(file)
    if content is None:
        reason, why = _missing(observed, pool, ref)
        return None, Refusal(reason, f"{model.name}: {why}")
    if file not in found.credentials:
        shard = found.room.place(pool.namespace, file, len(file) + len(content.encode()))
        if isinstance(shard, Refusal):
            return None, Refusal(shard.reason, f"{model.name}: Secret {ref.name}: {shard.message}")
        found.credentials[file] = content
    changed = guarded.model_copy(update={"credentials_file": f"{CREDENTIALS}/{file}", "credentials_secret_ref": None})
    place = next(name for name in ("hugging_face", "s3", "http") if getattr(model.source, name))
    return _with_source(model, model.source.model_copy(update={place: changed})), None


def _file_name(namespace: str, ref: SecretRef) -> str:
    """As a key of a Secret, whose length is bounded: one long name must not block all credentials.

    A dot can be in the Secret's name and in that of its entry; an underscore can be in the latter alone.
    """
    between = "_" if "." in ref.name else "."
    name = between.join((namespace, ref.name, ref.key))
    return name if len(name) <= _LONGEST_ENTRY else hashlib.sha256(name.encode()).hexdigest()


def _with_source(model: Named, source: Source) -> Named:
    return model.model_copy(update={"source": source})


@lru_cache(4096)  # the same for every look at the same model
def _inside(folder: str | None, given: str) -> str | None:
    """An absolute path without `..` below the models' folder, or None."""
    if folder is None or ".." in PurePosixPath(given).parts or given.startswith("~") or not given.isprintable():
        return None
    path = PurePosixPath(folder) / given
    return str(path) if path.is_relative_to(folder) else None


def _entry(observed: Observed, pool: Live[ModelPool], ref: SecretRef) -> str | None:
    return observed.secrets.get((pool.namespace, ref.name), {}).get(ref.key)


def _missing(observed: Observed, pool: Live[ModelPool], ref: SecretRef) -> tuple[str, str]:
    """A reason for programs, and a sentence."""
    why = observed.unreadable.get((pool.namespace, ref.name))
    if why:
        return "SecretUnreadable", f"Secret {ref.name} in namespace {pool.namespace} cannot be read: {why}"
    return "SecretNotFound", f"Secret {ref.name} in namespace {pool.namespace} is not there, or has no entry {ref.key}"


def unreadable(observed: Observed, pool: Live[ModelPool]) -> str:
    """Secrets of a ModelPool that cannot be read now, while what they had before counts; empty: none."""
    if not observed.unreadable or pool.value is None:
        return ""
    names = sorted({ref.name for ref in secrets_of(pool.value)})
    whys = [
        (name, observed.unreadable[pool.namespace, name])
        for name in names
        if (pool.namespace, name) in observed.unreadable
    ]
    return "; ".join(f"Secret {name} cannot be read, so what it had before counts: {why}" for name, why in whys)


def guessable(observed: Observed, pool: Live[ModelPool]) -> str:
    """Tenants of a ModelPool whose keys a later release will refuse; empty: none."""
    tenants = pool.value.spec.tenants if pool.value else []
    refs = [(one.name, one.key_secret_ref) for one in tenants if one.key_secret_ref]
    short = [name for name, ref in refs if short_keys(_entry(observed, pool, ref) or "")]
    return ", ".join(repr(name) for name in short)


# ---- tenants -------------------------------------------------------------------------------------------------------


def secrets_of(pool: ModelPool) -> Iterator[SecretRef]:
    """The Secrets, in its own namespace, that a ModelPool names."""
    for tenant in pool.spec.tenants:
        if tenant.key_secret_ref:
            yield tenant.key_secret_ref
    for model in pool.spec.models:
        for source in (model.source, *(adapter.source for adapter in model.adapters)):
            if source.guarded and source.guarded.credentials_secret_ref:
                yield source.guarded.credentials_secret_ref


def _access(observed: Observed, attached: Attached) -> Iterator[tuple[str, Json]]:
    """Documents of Admin.SetTenants, of each ModelPool (uid) that serves something. One without tenants is open; one
    whose keys are missing is closed."""
    for pool, claimed in _claimed(observed, attached):
        served = set(attached.names_of(pool.uid))
        if not served or pool.value is None:
            continue
        quotas = {
            model.name: quota_entry(model.quota) for model in attached.models_of(pool.uid) if model.quota != Quota()
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
    """Of one ModelPool, whose names that are served are given."""
    tenant = claim.tenant
    models = sorted(served.intersection(tenant.models or served))
    tier = f"TIER_{tenant.tier.upper()}"
    terms = {name: {"weight": tenant.weight, "tier": tier} for name in terms_entry(tenant, models)}
    return {
        "name": claim.known_as,
        "models": models,
        "key_sha256": sorted(hashes),
        "quota": quota_entry(tenant.quota),
        **({"strict": True} if tenant.strict else {}),
        **({"terms": terms} if terms else {}),
    }


Claimed = tuple[Live[ModelPool], list[tuple[Claim, list[str]]]]


def _claimed(observed: Observed, found: Attached) -> list[Claimed]:
    """Tenants of each ModelPool with the keys that are theirs alone, oldest first; problems are listed for each.

    A tenant that is another one in an older ModelPool is left out: the older one keeps keys and quota.
    """
    pools = [one for one in sorted(observed.model_pools, key=lambda one: one.age) if _may_claim(observed, one)]
    by_claim = {claim: pool for pool in pools if pool.value for claim in _claims(observed, pool)}
    wrong = list(contradictions(list(by_claim)))
    others = {one.claim for one in wrong if one.reason == "TenantConflict"}
    keys: dict[Claim, list[str]] = {}
    for claim, pool in by_claim.items():
        if claim not in others:
            keys[claim], problem = _keys(observed, pool, claim, found.written)
            wrong += [problem] if problem else []
    taken = list(shared_keys(list(keys.items())))
    for problem in [*wrong, *dict.fromkeys(one for one, _ in taken)]:
        found.refuse(by_claim[problem.claim].uid, Refusal(problem.reason, problem.text))
    for problem, key in taken:
        keys[problem.claim].remove(key)
    of_pool: dict[str, list[tuple[Claim, list[str]]]] = {}
    for claim, hashes in keys.items():
        of_pool.setdefault(by_claim[claim].uid, []).append((claim, hashes))
    return [(pool, of_pool.get(pool.uid, [])) for pool in pools]


def _may_claim(observed: Observed, pool: Live[ModelPool]) -> bool:
    return pool.value is not None and _refusal(observed, pool) is None


def _claims(observed: Observed, pool: Live[ModelPool]) -> Iterator[Claim]:
    assert pool.value is not None
    return claims(observed.key.namespace, pool.value, f"ModelPool {pool.namespace}/{pool.name}")


def _keys(
    observed: Observed, pool: Live[ModelPool], claim: Claim, written: Written
) -> tuple[list[str], Problem | None]:
    """Hashes of a tenant's keys, or why there are none."""
    ref, who = claim.tenant.key_secret_ref, f"tenant '{claim.tenant.name}'"
    if ref is None:
        return [], Problem(
            claim, "KeyFileNotHere", claim.place, f"{who}: keyFile is for `aegaeon up`; give keySecretRef"
        )
    content = _entry(observed, pool, ref)
    if content is None:
        is_unreadable = (pool.namespace, ref.name) in observed.unreadable
        if is_unreadable and (before := written.hashes.get(claim.known_as)):
            return before, None
        reason, why = _missing(observed, pool, ref)
        return [], Problem(claim, reason, claim.place, f"{who}: {why}")
    keys = hashes_of(content)
    if not keys:
        return [], Problem(claim, "SecretEmpty", claim.place, f"{who}: entry {ref.key} of Secret {ref.name} has no key")
    return list(dict.fromkeys(keys)), None
