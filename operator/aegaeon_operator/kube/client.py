"""The kinds of the operator, and its calls of the API server: server-side apply, lists, reads, evictions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aegaeon_kube import server
from aegaeon_kube.errors import KubeError
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Subject
from aegaeon_operator.reconcile.cluster.names import MANAGER
from aegaeon_operator.reconcile.cluster.ownership import owner_of
from aegaeon_operator.reconcile.cluster.platform import Platform

NOT_FOUND, CONFLICT, TOO_MANY = 404, 409, 429
NOT_OURS = "an object of this name exists and is not owned by this pool; rename or delete it, or rename the pool"


@dataclass(frozen=True, slots=True)
class Resource:
    """The API resource of a kind."""

    group: str
    version: str
    plural: str
    kind: str

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of an object, or of all in a namespace (None: all namespaces)."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [base, *(["namespaces", namespace] if namespace else []), self.plural, name, subresource]
        return "/".join(part for part in parts if part)


GPU_POOLS = Resource("serving.aegaeon.io", "v1alpha1", "gpupools", "GpuPool")
MODEL_POOLS = Resource("serving.aegaeon.io", "v1alpha1", "modelpools", "ModelPool")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
# Kinds that the operator creates, and watches by its label.
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
# Kinds that the operator only reads.
PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node")
_BY_KIND = {resource.kind: resource for resource in (*CHILDREN, *ISTIO, GPU_POOLS, MODEL_POOLS, EVENTS)}


def children_of(platform: Platform) -> tuple[Resource, ...]:
    """Return the kinds that the operator creates on a platform."""
    return CHILDREN + (ISTIO if platform.provider == "istio" else ())


def labelled(platform: Platform) -> tuple[Resource, ...]:
    """Return the kinds whose objects with the operator's label are watched."""
    return (*children_of(platform), PODS)


def resource_of(kind: str) -> Resource:
    """Return the resource of a kind."""
    return _BY_KIND[kind]


@dataclass(frozen=True, slots=True)
class Listed:
    """A consistent list of objects at a resourceVersion."""

    items: list[Json]
    version: int


Name = tuple[str, str]
"""namespace and name"""


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of objects, all or only the changed ones; `until`: the last covered resourceVersion."""

    known: dict[Name, str]
    until: str
    complete: bool

    def of(self, name: Name, before: str) -> str:
        """Return the version of an object; "" if it does not exist, `before` if it has not changed."""
        return self.known.get(name, "" if self.complete else before)


_PAGE = "500"
_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
_CHANGES_S = 1
UNKNOWN = Listed([], 2**63)  # for kinds that the API server does not serve


class Cluster:
    """Calls of the API server. Every method raises KubeError with the status and the server's message."""

    def __init__(self, api: server.ApiServer) -> None:
        self.api = api

    async def list(self, resource: Resource, namespace: str | None, labels: str = "", fields: str = "") -> Listed:
        """Return all objects of a kind; UNKNOWN if the API server does not serve the kind."""
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
        """Return whether the API server serves a kind."""
        base = resource.path(None).rpartition("/")[0]
        try:
            listed = await self.api.call("GET", base)
        except KubeError as error:
            if error.status == NOT_FOUND:
                return False
            raise
        return any(entry["name"] == resource.plural for entry in listed["resources"])

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Return an object; None if it does not exist."""
        try:
            return await self.api.call("GET", resource.path(namespace, name))
        except KubeError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def versions(
        self, resource: Resource, namespace: str | None, names: Container[Name], since: str = ""
    ) -> Versions:
        """Return the versions of the named objects, all or those that changed since a resourceVersion. It requests only
        metadata, and keeps nothing of other objects."""
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
        """Return the changes; the watch ends after a second, and later changes come with the next call."""
        versions = dict[Name, str]()
        async for event in self.api.watch(path, "", since, _CHANGES_S, _METADATA.format("")):
            name, since = _version(event["object"])
            if name in names:
                versions[name] = "" if event["type"] == "DELETED" else since
        return Versions(versions, since, complete=False)

    async def evict(self, pod: Json) -> bool:
        """Evict a pod; False if a disruption budget forbids it or the pod has changed since it was read."""
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
        """Return the message of an object's newest Event if it is a Warning; earlier Warnings are outdated."""
        selector = f"involvedObject.kind={about.key.kind},involvedObject.uid={about.uid}"
        listed = await self.api.call("GET", EVENTS.path(about.key.namespace), params={"fieldSelector": selector})
        newest: Json = max(listed["items"], key=_when, default={})
        return str(newest.get("message", "")) if newest.get("type") == "Warning" else ""

    async def claim(self, manifest: Json) -> Json | None:
        """Return the existing object of a manifest's name and owner, which lost its labels; None if it does not exist.

        Raises KubeError if it has another owner: applying the manifest would mix fields of both.
        """
        key = ChildKey.of(manifest)
        live = await self.get(resource_of(key.kind), key.namespace, key.name)
        if live and owner_of(live) != owner_of(manifest):
            raise KubeError(CONFLICT, NOT_OURS)
        return live

    async def apply(self, manifest: Json, subresource: str = "", force: bool = True) -> Json:
        """Apply a manifest server-side: fields of other managers stay.

        Without `force` a field that another manager set to another value is a conflict.
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
        """Create an object; a conflict if it exists."""
        resource = resource_of(manifest["kind"])
        return await self.api.call("POST", resource.path(manifest["metadata"]["namespace"]), body=manifest)

    async def delete(self, live: Json) -> None:
        """Delete this object; a conflict if it has changed since it was read. Its pods are deleted in the background;
        an object that no longer exists is no error."""
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
    """Return an object's name and resourceVersion."""
    metadata = body["metadata"]
    return (metadata["namespace"], metadata["name"]), metadata["resourceVersion"]


def _when(event: Json) -> str:
    """Return an Event's time, RFC 3339 in UTC, which sorts as text."""
    return event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""


@asynccontextmanager
async def connect(observe: server.Observer) -> AsyncIterator[Cluster]:
    """Connect with the pod's service account or KUBECONFIG. Raises KubeError without either."""
    async with server.connect(observe) as api:
        yield Cluster(api)
