"""The kinds that the operator works with, and its calls: server-side apply with our field manager, lists and reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aegaeon_kube import server
from aegaeon_kube.errors import KubeError
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Platform, Subject
from aegaeon_operator.reconcile.cluster.names import MANAGER
from aegaeon_operator.reconcile.cluster.ownership import owner_of

NOT_FOUND, CONFLICT, TOO_MANY = 404, 409, 429
NOT_OURS = "one of this name is there and is not owned by this pool; rename or delete it, or name the pool otherwise"


@dataclass(frozen=True, slots=True)
class Resource:
    """Where objects of a kind are found."""

    group: str
    version: str
    plural: str
    kind: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Of one object, or of all in a namespace (None: everywhere)."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [base, *(["namespaces", namespace] if namespace else []), self.plural, name, subresource]
        return "/".join(part for part in parts if part)


GPU_POOLS = Resource("serving.aegaeon.io", "v1alpha1", "gpupools", "GpuPool")
MODEL_POOLS = Resource("serving.aegaeon.io", "v1alpha1", "modelpools", "ModelPool")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
# What the operator makes, and watches by its label.
CHILDREN = (
    SECRETS,
    Resource("", "v1", "services", "Service"),
    Resource("apps", "v1", "deployments", "Deployment"),
    Resource("apps", "v1", "statefulsets", "StatefulSet"),
    Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy"),
    Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute"),
    Resource("gateway.networking.k8s.io", "v1beta1", "referencegrants", "ReferenceGrant"),
    Resource("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool"),
    Resource("", "v1", "serviceaccounts", "ServiceAccount"),
    Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
)
ISTIO = (Resource("networking.istio.io", "v1", "destinationrules", "DestinationRule"),)
# What the cluster makes of them, which is read alone.
PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node")
_BY_KIND = {one.kind: one for one in (*CHILDREN, *ISTIO, GPU_POOLS, MODEL_POOLS, EVENTS)}


def children_of(platform: Platform) -> tuple[Resource, ...]:
    """The kinds that are made there."""
    return CHILDREN + (ISTIO if platform.provider == "istio" else ())


def labelled(platform: Platform) -> tuple[Resource, ...]:
    """The kinds of which those with our label are watched."""
    return (*children_of(platform), PODS)


def resource_of(kind: str) -> Resource:
    """The resource of a kind that is used here."""
    return _BY_KIND[kind]


@dataclass(frozen=True, slots=True)
class Listed:
    """Objects as they all were at one resourceVersion."""

    items: list[Json]
    version: int


Name = tuple[str, str]
"""namespace and name"""


@dataclass(frozen=True, slots=True)
class Versions:
    """resourceVersions of objects, all or those that have changed; `until`: the newest that is covered."""

    known: dict[Name, str]
    until: str
    complete: bool

    def of(self, name: Name, before: str) -> str:
        """Empty of one that is not there; `before` of one that has not changed."""
        return self.known.get(name, "" if self.complete else before)


_PAGE = "500"
_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
_CHANGES_S = 1
UNKNOWN = Listed([], 2**63)  # of a kind that the API server does not know there is nothing, and was nothing


class Cluster:
    """Calls of the API server. Every method raises KubeError with the status and what the server said."""

    def __init__(self, api: server.ApiServer) -> None:
        self.api = api

    async def list(self, resource: Resource, namespace: str | None, labels: str = "", fields: str = "") -> Listed:
        """All objects of a kind; none where the API server does not know the kind."""
        params = {"labelSelector": labels, "resourceVersion": "0"} | ({"fieldSelector": fields} if fields else {})
        try:
            answer = await self.api.call("GET", resource.path(namespace), params=params)
        except KubeError as error:
            if error.status == NOT_FOUND:
                return UNKNOWN
            raise
        api_version = f"{resource.group}/{resource.version}" if resource.group else resource.version
        items = [{"apiVersion": api_version, "kind": resource.kind, **item} for item in answer["items"]]
        return Listed(items, int(answer["metadata"]["resourceVersion"]))

    async def knows(self, resource: Resource) -> bool:
        """Whether the API server has that kind."""
        base = resource.path(None).rpartition("/")[0]
        try:
            found = await self.api.call("GET", base)
        except KubeError as error:
            if error.status == NOT_FOUND:
                return False
            raise
        return any(one["name"] == resource.plural for one in found["resources"])

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """One object, or None."""
        try:
            return await self.api.call("GET", resource.path(namespace, name))
        except KubeError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def versions(
        self, resource: Resource, namespace: str | None, names: Container[Name], since: str = ""
    ) -> Versions:
        """Of these of the objects, all or those that have changed since a resourceVersion. Metadata alone is asked for;
        nothing of other objects is kept."""
        path = resource.path(namespace)
        return await (self._changed(path, names, since) if since else self._listed(path, names))

    async def _listed(self, path: str, names: Container[Name]) -> Versions:
        params, versions = {"limit": _PAGE}, dict[Name, str]()
        while True:
            page = await self.api.call("GET", path, params=params, accept=_METADATA.format("List"))
            versions |= {name: version for name, version in map(_version, page["items"]) if name in names}
            rest = page["metadata"].get("continue")
            if not rest:
                return Versions(versions, page["metadata"]["resourceVersion"], complete=True)
            params = {"limit": _PAGE, "continue": rest}

    async def _changed(self, path: str, names: Container[Name], since: str) -> Versions:
        """The API server sends what there is, and waits a second: a later change comes with the next call."""
        versions = dict[Name, str]()
        async for event in self.api.watch(path, "", since, _CHANGES_S, _METADATA.format("")):
            name, since = _version(event["object"])
            if name in names:
                versions[name] = "" if event["type"] == "DELETED" else since
        return Versions(versions, since, complete=False)

    async def evict(self, pod: Json) -> bool:
        """Ask this pod, as it was seen, to end; False where a disruption budget forbids it, or it has changed."""
        metadata = {name: pod["metadata"][name] for name in ("namespace", "name")}
        options = {"preconditions": {name: pod["metadata"][name] for name in ("uid", "resourceVersion")}}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
        try:
            await self.api.call("POST", PODS.path(metadata["namespace"], metadata["name"], "eviction"), body=body)
        except KubeError as error:
            if error.status in (NOT_FOUND, CONFLICT, TOO_MANY):
                return False
            raise
        return True

    async def warning(self, about: Subject) -> str:
        """What the newest Event about an object says, if it is a Warning: what came before it is over."""
        selector = f"involvedObject.kind={about.key.kind},involvedObject.uid={about.uid}"
        found = await self.api.call("GET", EVENTS.path(about.key.namespace), params={"fieldSelector": selector})
        newest: Json = max(found["items"], key=_when, default={})
        return str(newest.get("message", "")) if newest.get("type") == "Warning" else ""

    async def claim(self, manifest: Json) -> Json | None:
        """The object of a manifest's name that is its owner's, but has lost our labels; None where there is none.

        Raises KubeError where it is another owner's: applied, ours would mix with its fields.
        """
        key = ChildKey.of(manifest)
        found = await self.get(resource_of(key.kind), key.namespace, key.name)
        if found and owner_of(found) != owner_of(manifest):
            raise KubeError(CONFLICT, NOT_OURS)
        return found

    async def apply(self, manifest: Json, subresource: str = "", force: bool = True) -> Json:
        """Server-side apply: our fields become these, other managers' fields stay.

        Without `force` it is a conflict when one of these fields is another manager's and differs.
        """
        key = ChildKey.of(manifest)
        return await self.api.call(
            "PATCH",
            resource_of(key.kind).path(key.namespace, key.name, subresource),
            params={"fieldManager": MANAGER, "force": str(force).lower()},
            body=manifest,
            content_type="application/apply-patch+yaml",
        )

    async def create(self, manifest: Json) -> Json:
        """A new object; a conflict when it is there."""
        resource = resource_of(manifest["kind"])
        return await self.api.call("POST", resource.path(manifest["metadata"]["namespace"]), body=manifest)

    async def delete(self, live: Json) -> None:
        """This object as it was seen, and no other: a conflict where it has changed since. Its pods go in the
        background; one that is gone already is no error."""
        key, metadata = ChildKey.of(live), live["metadata"]
        seen = {name: metadata[name] for name in ("uid", "resourceVersion")}
        options = {"propagationPolicy": "Background", "preconditions": seen}
        path = resource_of(key.kind).path(key.namespace, key.name)
        try:
            await self.api.call("DELETE", path, body={"apiVersion": "v1", "kind": "DeleteOptions", **options})
        except KubeError as error:
            if error.status != NOT_FOUND:
                raise


def _version(body: Json) -> tuple[Name, str]:
    """Namespace and name, and resourceVersion."""
    metadata = body["metadata"]
    return (metadata["namespace"], metadata["name"]), metadata["resourceVersion"]


def _when(event: Json) -> str:
    """RFC 3339 in UTC, which sorts as text."""
    return event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""


@asynccontextmanager
async def connect(observe: server.Observer) -> AsyncIterator[Cluster]:
    """With the pod's service account, or KUBECONFIG. Raises KubeError when there is neither."""
    async with server.connect(observe) as api:
        yield Cluster(api)
