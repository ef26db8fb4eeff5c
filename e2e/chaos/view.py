"""What runs on the cluster, asked of the API server by one connection: a kubectl for every look would cost a core."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from e2e.cluster.layout import Layout, Node, url
from e2e.pool import PORT

_TIMEOUT_S = 3.0
# Of pods that are no pool's: the label that tells them, and what they are called here.
_OTHERS = {"aegaeon-operator": "operator", "aegaeon-redis": "redis"}
UNREACHABLE = (HTTPError, client.ApiException, OSError)


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod. `container`: the id of its main one, empty before it was made; `images` of all."""

    namespace: str
    name: str
    uid: str
    component: str
    node: str
    ip: str
    ready: bool
    ending: bool
    container: str
    restarts: int
    images: tuple[str, ...]

    @property
    def url(self) -> str:
        return url(self.ip, PORT)


class View:
    """Of a pool and what it needs: the operator, Redis, DNS. Methods raise one of UNREACHABLE without an answer."""

    def __init__(self, kubeconfig: Path, layout: Layout, namespace: str, system: str) -> None:
        self._api = config.new_client_from_config(str(kubeconfig))
        self._core: Any = client.CoreV1Api(self._api)
        self._objects: Any = client.CustomObjectsApi(self._api)
        self._discovery: Any = client.DiscoveryV1Api(self._api)
        self._layout = layout
        self.namespace, self.system = namespace, system

    def close(self) -> None:
        self._api.close()

    def pods(self) -> list[Seen]:
        """All of them, in the order of their names."""
        found = [one for where in (self.namespace, self.system) for one in self._pods(where, "")]
        return sorted([*found, *self._pods("kube-system", "k8s-app=kube-dns")], key=lambda one: one.name)

    def of(self, component: str) -> list[Seen]:
        """Those that are there to stay."""
        return [one for one in self.pods() if one.component == component and not one.ending]

    def node(self, name: str) -> Node:
        return next(node for node in self._layout.nodes if node.name == name)

    def leader(self, pool: str) -> str:
        """The pod that holds the Lease of the pool's schedulers; empty without a holder."""
        leases: Any = client.CoordinationV1Api(self._api)
        found = leases.read_namespaced_lease(f"{pool}-scheduler", self.namespace, _request_timeout=_TIMEOUT_S)
        return str(found.spec.holder_identity or "")

    def endpoints(self, service: str) -> list[str]:
        """URLs of the pods that a Service sends requests to, as kube-proxy knows them."""
        listed = self._discovery.list_namespaced_endpoint_slice(
            self.namespace,
            label_selector=f"kubernetes.io/service-name={service}",
            _preload_content=False,
            _request_timeout=_TIMEOUT_S,
        )
        ends = [end for one in json.loads(listed.data)["items"] for end in one.get("endpoints") or ()]
        return sorted(url(end["addresses"][0], PORT) for end in ends if end["conditions"].get("ready"))

    def unready(self) -> Iterator[str]:
        """A sentence for each GpuPool and ModelPool that does not say Ready of its newest spec."""
        for plural in ("gpupools", "modelpools"):
            for one in self._custom(plural):
                name, status = f"{one['kind']} {one['metadata']['name']}", one.get("status", {})
                if status.get("observedGeneration") != one["metadata"]["generation"]:
                    yield f"{name} is not of its newest spec"
                elif not (said := _condition(status, "Ready")) or said["status"] != "True":
                    yield f"{name}: {said and said['message']}"

    def condition(self, plural: str, name: str, condition: str) -> dict[str, Any]:
        """Empty where there is none, or where it is of an older spec."""
        body = next((body for body in self._custom(plural) if body["metadata"]["name"] == name), None)
        if body is None:
            return {}
        status = body.get("status", {})
        current = status.get("observedGeneration") == body["metadata"]["generation"]
        return _condition(status, condition) or {} if current else {}

    def _custom(self, plural: str) -> list[dict[str, Any]]:
        where = ("serving.aegaeon.io", "v1alpha1", self.namespace, plural)
        listed = self._objects.list_namespaced_custom_object(*where, _request_timeout=_TIMEOUT_S)
        return list(listed["items"])

    def _pods(self, namespace: str, selector: str) -> Iterator[Seen]:
        listed = self._core.list_namespaced_pod(
            namespace, label_selector=selector, _preload_content=False, _request_timeout=_TIMEOUT_S
        )
        return map(_seen, json.loads(listed.data)["items"])


def _seen(found: dict[str, Any]) -> Seen:
    meta, status = found["metadata"], found["status"]
    ready = _condition(status, "Ready") or {}
    (main, *_) = status.get("containerStatuses") or [{}]
    return Seen(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        component=_component(meta.get("labels", {})),
        node=found["spec"].get("nodeName", ""),
        ip=status.get("podIP", ""),
        ready=ready.get("status") == "True",
        ending="deletionTimestamp" in meta,
        container=main.get("containerID", "").rpartition("/")[2] if "running" in main.get("state", {}) else "",
        restarts=main.get("restartCount", 0),
        images=tuple(one["image"] for one in found["spec"]["containers"]),
    )


def _component(labels: dict[str, str]) -> str:
    name = labels.get("app.kubernetes.io/name", labels.get("k8s-app", ""))
    return _OTHERS.get(name) or labels.get("app.kubernetes.io/component") or {"kube-dns": "dns"}.get(name, "")


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((one for one in status.get("conditions", ()) if one["type"] == kind), None)
