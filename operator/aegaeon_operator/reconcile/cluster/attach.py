"""Attachment of ModelPools to a GpuPool: served models, their tenants, and reasons for refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from aegaeon_operator.reconcile.cluster.applied_secrets import AppliedSecrets
from aegaeon_operator.reconcile.cluster.facts import Json, Live, Observed, Refusal
from aegaeon_operator.reconcile.cluster.memo import Memo
from aegaeon_operator.reconcile.cluster.resolve import Credentials, Inputs, Named, Resolved, ResolvedModel
from aegaeon_operator.reconcile.cluster.shards import Shards
from aegaeon_operator.reconcile.processes import quota_entry
from aegaeon_operator.reconcile.tenants import terms_entry
from aegaeon_operator.spec.crosscheck import allows
from aegaeon_operator.spec.resources import ModelPool, Quota, ServedModel
from aegaeon_operator.spec.tenancy import Claim, contradictions, shared_keys

_NO_QUOTA = Quota()
_READABLE = AppliedSecrets()
_NO_SECRET: Json = {}


@dataclass(slots=True)
class Attached:
    """The served models. `names`: owner of each model and adapter. `refused`: refusal by ModelPool (uid), total or
    partial; `failed`: reason by ModelPool and name. `credentials`: content by file; `room`: their shards. `access`: by
    ModelPool, its document of tenants. `resolved`: by accepted ModelPool."""

    models: dict[str, tuple[Live[ModelPool], ServedModel]] = field(default_factory=dict)
    names: dict[str, Live[ModelPool]] = field(default_factory=dict)
    refused: dict[str, Refusal] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    credentials: dict[str, str] = field(default_factory=dict)
    room: Shards = field(default_factory=Shards)
    access: dict[str, Json] = field(default_factory=dict)
    resolved: dict[str, Resolved] = field(default_factory=dict, compare=False)
    _of_owner: dict[str, tuple[list[ServedModel], list[str]]] = field(default_factory=dict)

    def take(self, owner: Live[ModelPool], model: ServedModel) -> None:
        """Add a served model with its served adapters."""
        self.models[model.name] = (owner, model)
        self._of_owner.setdefault(owner.uid, ([], []))[0].append(model)

    def name(self, owner: Live[ModelPool], name: str) -> None:
        """Reserve a name of a model or adapter for its ModelPool."""
        self.names[name] = owner
        self._of_owner.setdefault(owner.uid, ([], []))[1].append(name)

    def keep(self, namespace: str, credentials: Credentials) -> Refusal | None:
        """Add a file of credentials; return the refusal if it does not fit in the pool's Secrets."""
        file, content = credentials.file, credentials.content
        if file not in self.credentials:
            shard = self.room.place(namespace, file, len(file) + len(content.encode()))
            if isinstance(shard, Refusal):
                return Refusal(shard.reason, f"Secret {credentials.secret}: {shard.message}")
            self.credentials[file] = content
        return None

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
    attached, memo = Attached(), memo or Memo()
    applied = AppliedSecrets.of(observed) if observed.unreadable else _READABLE
    for pool in observed.model_pools:
        refusal = _refusal(observed, pool)
        if refusal:
            attached.refuse(pool.uid, refusal)
        elif observed.spec:
            errors = tuple(observed.unreadable.get(name, "") for name in pool.secrets)
            contents = tuple(observed.secrets.get(name, _NO_SECRET) for name in pool.secrets)
            inputs = Inputs(observed.key, observed.spec, pool, contents, errors, applied if any(errors) else _READABLE)
            attached.resolved[pool.uid] = memo.of(("resolved", pool.uid), inputs, inputs.resolve)
            _take(pool, attached.resolved[pool.uid], attached)
    attached.access = dict(_access(observed, attached, memo))
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


def _take(pool: Live[ModelPool], resolved: Resolved, attached: Attached) -> None:
    for model in resolved.models:
        usable = _taken(pool, model, attached)
        if usable is not None:
            checked = [_taken(pool, adapter, attached) for adapter in model.adapters]
            adapters = tuple(adapter for adapter in checked if adapter is not None)
            unchanged = adapters == usable.adapters
            attached.take(pool, usable if unchanged else usable.model_copy(update={"adapters": adapters}))


def _taken(pool: Live[ModelPool], model: ResolvedModel[Named], attached: Attached) -> Named | None:
    """Return a model or adapter that can be served; None after noting the refusal."""
    problem = _conflict(pool, model.name, attached) or model.refusal
    if problem is None and model.credentials:
        full = attached.keep(pool.namespace, model.credentials)
        problem = full and Refusal(full.reason, f"{model.name}: {full.message}")
    if problem:
        attached.refuse(pool.uid, problem)
        attached.failed[pool.uid, model.name] = problem.message
        return None
    attached.name(pool, model.name)
    return model.usable


def _conflict(pool: Live[ModelPool], name: str, attached: Attached) -> Refusal | None:
    holder = attached.names.get(name)
    if holder is None:
        return None
    other = f"{holder.namespace}/{holder.name}"
    text = f"{name} is served by ModelPool {other}, which is older; rename the model"
    return Refusal("NameConflict", text if holder is not pool else f"{name} is a duplicate; rename one")


# ---- tenants -------------------------------------------------------------------------------------------------------

Granted = list[tuple[Claim, list[str]]]


def _access(observed: Observed, attached: Attached, memo: Memo) -> Iterator[tuple[str, Json]]:
    """Yield the document of Admin.SetTenants for each ModelPool (uid) with served models. A pool without tenants is
    open; a pool whose keys are missing is closed."""
    granted = _granted(attached)
    for pool in observed.model_pools:
        served = attached.names_of(pool.uid)
        if served and pool.value:
            inputs = (pool.value, attached.models_of(pool.uid), served, granted.get(pool.uid, []))
            yield pool.uid, memo.of(("access", pool.uid), inputs, partial(_document, *inputs))


def _document(pool: ModelPool, models: list[ServedModel], names: list[str], granted: Granted) -> Json:
    served = set(names)
    return {
        "tenants": [_tenant(claim, hashes, served) for claim, hashes in granted],
        "open_models": [] if pool.spec.tenants else sorted(served),
        "model_quotas": {model.name: quota_entry(model.quota) for model in models if model.quota != _NO_QUOTA},
    }


def _tenant(claim: Claim, hashes: list[str], served: set[str]) -> Json:
    """Return the entry of a tenant; `served`: the served names of its ModelPool."""
    tenant = claim.tenant
    models = sorted(served.intersection(tenant.models or served))
    entry = {"weight": tenant.weight or 1, "tier": f"TIER_{(tenant.tier or 'standard').upper()}"}
    terms = dict.fromkeys(terms_entry(tenant, models), entry)
    return {
        "name": claim.known_as,
        "models": models,
        "key_sha256": sorted(hashes),
        "quota": quota_entry(tenant.quota),
        **({"strict": True} if tenant.strict else {}),
        **({"terms": terms} if terms else {}),
    }


def _granted(attached: Attached) -> dict[str, Granted]:
    """Return the tenants of each ModelPool (uid), with the keys that no other tenant has; note the problems.

    A tenant that contradicts an older ModelPool's is left out: the older one keeps keys and quota.
    """
    tenants = [(uid, tenant) for uid, resolved in attached.resolved.items() for tenant in resolved.tenants]
    owners = {tenant.claim: uid for uid, tenant in tenants}
    problems = list(contradictions(list(owners)))
    conflicts = {problem.claim for problem in problems if problem.reason == "TenantConflict"}
    keys = {tenant.claim: tenant.hashes for _, tenant in tenants if tenant.claim not in conflicts}
    problems += [tenant.problem for _, tenant in tenants if tenant.problem and tenant.claim in keys]
    shared = list(shared_keys(list(keys.items())))
    for problem in [*problems, *dict.fromkeys(problem for problem, _ in shared)]:
        attached.refuse(owners[problem.claim], Refusal(problem.reason, problem.text))
    for problem, key in shared:
        keys[problem.claim] = [known for known in keys[problem.claim] if known != key]
    granted: dict[str, Granted] = {}
    for claim, hashes in keys.items():
        granted.setdefault(owners[claim], []).append((claim, hashes))
    return granted
