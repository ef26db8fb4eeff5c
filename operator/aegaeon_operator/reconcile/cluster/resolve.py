"""A ModelPool's models and tenants as far as they depend on no other ModelPool: paths in the pods, credentials, keys.

Most ModelPools are the same in most reconciles, so `attach.py` derives these once and compares only across ModelPools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Generic, NamedTuple, TypeVar

from aegaeon_operator.reconcile.cluster.applied_secrets import AppliedSecrets
from aegaeon_operator.reconcile.cluster.facts import Key, Live, Refusal
from aegaeon_operator.reconcile.cluster.names import CREDENTIALS
from aegaeon_operator.spec.base import SecretRef
from aegaeon_operator.spec.model_pool import Adapter
from aegaeon_operator.spec.resources import GpuPoolSpec, ModelPool, ServedModel
from aegaeon_operator.spec.sources import Guarded
from aegaeon_operator.spec.tenancy import Claim, Problem, claims, hashes_of, short_keys
from aegaeon_proto.backends import having

_LONGEST_ENTRY = 253
Named = TypeVar("Named", ServedModel, Adapter)


class Credentials(NamedTuple):
    """Credentials of a source: the name of their file, its content, and the Secret that has them."""

    file: str
    content: str
    secret: str


@dataclass(frozen=True, slots=True)
class ResolvedModel(Generic[Named]):
    """A model or adapter with the paths of the pods, or the reason for not serving it."""

    name: str
    usable: Named | None
    refusal: Refusal | None = None
    credentials: Credentials | None = None
    adapters: tuple[ResolvedModel[Adapter], ...] = ()


class TenantKeys(NamedTuple):
    """A tenant's entry with the hashes of its keys, or the problem with them."""

    claim: Claim
    hashes: list[str]
    problem: Problem | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """The models and tenants of a ModelPool. `unreadable`: message about Secrets that cannot be read, whose last
    content still applies; `guessable`: tenants with keys that a later release will refuse."""

    models: tuple[ResolvedModel[ServedModel], ...] = ()
    tenants: tuple[TenantKeys, ...] = ()
    unreadable: str = ""
    guessable: str = ""


@dataclass(frozen=True, slots=True)
class Inputs:
    """All inputs of `Resolved`. `contents` and `errors`: of the Secrets that it references; `applied`:
    content that the pool's Secrets already have, which applies while one of them cannot be read."""

    key: Key
    spec: GpuPoolSpec
    pool: Live[ModelPool]
    contents: tuple[Any, ...]
    errors: tuple[str, ...]
    applied: AppliedSecrets

    def resolve(self) -> Resolved:
        """Return the models and tenants; none of an invalid ModelPool."""
        value = self.pool.value
        if value is None:
            return Resolved()
        label = f"ModelPool {self.pool.namespace}/{self.pool.name}"
        return Resolved(
            tuple(self._with_adapters(model) for model in value.spec.models),
            tuple(self._keys(claim) for claim in claims(self.key.namespace, value, label)),
            self._unreadable(),
            self._guessable(value),
        )

    def _with_adapters(self, model: ServedModel) -> ResolvedModel[ServedModel]:
        base = self._of(model)
        if base.usable is None or not model.adapters:
            return base
        adapters = tuple(self._of_adapter(adapter) for adapter in model.adapters)
        usable = tuple(adapter.usable for adapter in adapters if adapter.usable)
        served = base.usable.model_copy(update={"adapters": usable})
        return ResolvedModel(model.name, served, None, base.credentials, adapters)

    def _of_adapter(self, adapter: Adapter) -> ResolvedModel[Adapter]:
        if self.spec.adapters is None:
            text = f"{adapter.name}: the GpuPool has no spec.adapters (backend {having('adapters')}); add it"
            return ResolvedModel(adapter.name, None, Refusal("AdaptersNotServed", text))
        return self._of(adapter)

    def _of(self, model: Named) -> ResolvedModel[Named]:
        source = model.source
        if source.needs_disk and self.spec.memory.disk is None:
            text = f"{model.name} needs a disk tier; add spec.memory.disk to the GpuPool"
            return ResolvedModel(model.name, None, Refusal("DiskMissing", text))
        if source.host_path is not None:
            return self._of_node(model, source.host_path)
        if source.guarded:
            return self._guarded(model, source.guarded)
        return ResolvedModel(model.name, model)

    def _of_node(self, model: Named, host_path: str) -> ResolvedModel[Named]:
        models = self.spec.volumes.models
        path = _inside(models.path, host_path) if models else None
        if path is None:
            outside = f"{host_path} is not inside the GpuPool's volumes.models.path"
            text = f"{model.name}: {outside if models else 'hostPath needs volumes.models in the GpuPool'}"
            return ResolvedModel(model.name, None, Refusal("HostPathNotAllowed", text))
        return ResolvedModel(model.name, _with_source(model, {"host_path": path}))

    def _guarded(self, model: Named, guarded: Guarded) -> ResolvedModel[Named]:
        """Return the model with the credentials from its own namespace as a file of the pods, or the refusal."""
        if guarded.credentials_file:  # a path could name other tenants' credentials in the pods
            text = f"{model.name}: credentialsFile is for `aegaeon up` only; set credentialsSecretRef"
            return ResolvedModel(model.name, None, Refusal("CredentialsFileNotHere", text))
        ref = guarded.credentials_secret_ref
        if ref is None:
            return ResolvedModel(model.name, model)
        file = _file_name(self.pool.namespace, ref)
        content = self._entry(ref)
        if content is None and self._error(ref):
            content = self.applied.credentials.get(file)
        if content is None:
            reason, why = self._missing(ref)
            return ResolvedModel(model.name, None, Refusal(reason, f"{model.name}: {why}"))
        changed = guarded.model_copy(
            update={"credentials_file": f"{CREDENTIALS}/{file}", "credentials_secret_ref": None}
        )
        place = next(name for name in ("hugging_face", "s3", "http") if getattr(model.source, name))
        usable = _with_source(model, {place: changed})
        return ResolvedModel(model.name, usable, None, Credentials(file, content, ref.name))

    def _keys(self, claim: Claim) -> TenantKeys:
        ref, who = claim.tenant.key_secret_ref, f"tenant '{claim.tenant.name}'"
        if ref is None:
            text = f"{who}: keyFile is for `aegaeon up` only; set keySecretRef"
            return TenantKeys(claim, [], Problem(claim, "KeyFileNotHere", claim.place, text))
        content = self._entry(ref)
        if content is None:
            if self._error(ref) and (before := self.applied.hashes.get(claim.known_as)):
                return TenantKeys(claim, before)
            reason, why = self._missing(ref)
            return TenantKeys(claim, [], Problem(claim, reason, claim.place, f"{who}: {why}"))
        keys = list(dict.fromkeys(hashes_of(content)))
        if not keys:
            text = f"{who}: entry {ref.key} of Secret {ref.name} has no key"
            return TenantKeys(claim, [], Problem(claim, "SecretEmpty", claim.place, text))
        return TenantKeys(claim, keys)

    def _unreadable(self) -> str:
        whys = [(name, why) for (_, name), why in zip(self.pool.secrets, self.errors, strict=True) if why]
        return "; ".join(f"Secret {name} cannot be read, its last content is used: {why}" for name, why in whys)

    def _guessable(self, value: ModelPool) -> str:
        refs = [(tenant.name, tenant.key_secret_ref) for tenant in value.spec.tenants if tenant.key_secret_ref]
        short = [name for name, ref in refs if short_keys(self._entry(ref) or "")]
        return ", ".join(repr(name) for name in short)

    def _entry(self, ref: SecretRef) -> str | None:
        content: str | None = self.contents[self._place(ref)].get(ref.key)
        return content

    def _error(self, ref: SecretRef) -> str:
        return self.errors[self._place(ref)]

    def _place(self, ref: SecretRef) -> int:
        return self.pool.secrets.index((self.pool.namespace, ref.name))

    def _missing(self, ref: SecretRef) -> tuple[str, str]:
        """Return the reason and the message for a Secret without the entry."""
        where = f"Secret {ref.name} in namespace {self.pool.namespace}"
        if why := self._error(ref):
            return "SecretUnreadable", f"{where} cannot be read: {why}"
        return "SecretNotFound", f"{where} does not exist or has no entry {ref.key}"


def secrets_of(pool: ModelPool) -> Iterator[SecretRef]:
    """Yield the references to Secrets of a ModelPool, in its own namespace."""
    for tenant in pool.spec.tenants:
        if tenant.key_secret_ref:
            yield tenant.key_secret_ref
    for model in pool.spec.models:
        for source in (model.source, *(adapter.source for adapter in model.adapters)):
            if source.guarded and source.guarded.credentials_secret_ref:
                yield source.guarded.credentials_secret_ref


def _file_name(namespace: str, ref: SecretRef) -> str:
    """Return a unique key for the pool's Secret, within the limit of its length: a long name must not block the others.

    A Secret's name may contain dots; an underscore can only be in the name of its entry.
    """
    between = "_" if "." in ref.name else "."
    name = between.join((namespace, ref.name, ref.key))
    return name if len(name) <= _LONGEST_ENTRY else hashlib.sha256(name.encode()).hexdigest()


def _with_source(model: Named, changes: dict[str, object]) -> Named:
    return model.model_copy(update={"source": model.source.model_copy(update=changes)})


def _inside(folder: str, host_path: str) -> str | None:
    """Return the absolute path if it is below the models' folder, without `..`; else None."""
    if ".." in PurePosixPath(host_path).parts or host_path.startswith("~") or not host_path.isprintable():
        return None
    path = PurePosixPath(folder) / host_path
    return str(path) if path.is_relative_to(folder) else None
