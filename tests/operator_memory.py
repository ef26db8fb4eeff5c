"""An API server in memory, behind real HTTP: objects, resourceVersions, watches, server-side apply, preconditions.

It knows the kinds that the operator works with. `calls` has every request; `failing` decides which of them fail.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from aiohttp import web
from operator_api import refusal

from aegaeon_operator.kube.client import CHILDREN, EVENTS, GPU_POOLS, MODEL_POOLS, NODES, PODS, Resource

Json = dict[str, Any]
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
KINDS = (*CHILDREN, GPU_POOLS, MODEL_POOLS, EVENTS, PODS, NODES, LEASES, NAMESPACES)
_VERBS = ["get", "list", "watch", "create", "patch", "update", "delete"]
_SECRET_BYTES = 1 << 20
_SELF_MADE = ("uid", "creationTimestamp", "generation", "resourceVersion")


class At(NamedTuple):
    """An object's place; `name` empty: all of a kind."""

    kind: str
    namespace: str | None
    name: str = ""


class Call(NamedTuple):
    """A request: get, list, watch, create, apply, status, update, delete or evict, and what for."""

    verb: str
    at: At


@dataclass(eq=False)
class _Watch:
    at: At
    chosen: Callable[[Json], bool]
    bare: bool
    events: asyncio.Queue[Json] = field(default_factory=asyncio.Queue)


def never(_: Call) -> int:
    """Nothing fails."""
    return 0


class Memory:
    """`failing` gives the status that a call ends in, 0 where it is answered."""

    def __init__(self, kinds: Iterable[Resource] = KINDS) -> None:
        self.kinds = {(one.group, one.plural): one for one in kinds}
        self.objects: dict[At, Json] = {}
        self.calls: list[Call] = []
        self.written: list[tuple[Call, Json | None]] = []
        """writes that were taken, and the object as it was before"""
        self.failing: Callable[[Call], int] = never
        self._versions = count(1000)
        self._watches: set[_Watch] = set()
        self._happened: list[tuple[int, str, At, Json]] = []
        self._version = "999"

    # ---- what others do --------------------------------------------------------------------------------------------

    def put(self, body: Json) -> Json:
        """Create or replace an object, as anybody may."""
        at = At(body["kind"], body["metadata"].get("namespace"), body["metadata"]["name"])
        return self._save(at, self._complete(copy.deepcopy(body), self.objects.get(at)))

    def remove(self, at: At) -> None:
        """It is gone."""
        body = copy.deepcopy(self.objects.pop(at))
        body["metadata"]["resourceVersion"] = self._next()
        self._tell("DELETED", at, body)

    def collect_garbage(self) -> None:
        """What owners that are gone have left, as the garbage collector of Kubernetes does."""
        there = {(at.namespace, one["metadata"]["uid"]) for at, one in self.objects.items()}
        for at, one in list(self.objects.items()):
            owners = one["metadata"].get("ownerReferences") or []
            if owners and not any((at.namespace, owner["uid"]) in there for owner in owners):
                self.remove(at)

    def undefine(self, kinds: Iterable[Resource]) -> None:
        """Their definitions are deleted, and so are their objects; watches end."""
        for kind in kinds:
            del self.kinds[kind.group, kind.plural]
            for at in [one for one in self.objects if one.kind == kind.kind]:
                self.remove(at)
            for watch in self._watches:
                if watch.at.kind == kind.kind:
                    watch.events.put_nowait({})

    # ---- what is answered ------------------------------------------------------------------------------------------

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Of one request. Its body is read whatever comes of it: else the connection answers nothing for 10 s."""
        body = await request.json() if request.can_read_body else {}
        parts = request.path.strip("/").split("/")
        if found := self._discovery(parts):
            return web.json_response(found)
        group, parts = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
        if not parts:
            return refusal(404, "the server could not find the requested resource")
        namespace = None
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        resource = self.kinds.get((group, parts[0]))
        if resource is None:
            return refusal(404, "the server could not find the requested resource")
        name, part = (*parts[1:], "", "")[:2]
        call = Call(_verb(request, name, part), At(resource.kind, namespace, name))
        self.calls.append(call)
        if status := self.failing(call):
            return refusal(status, f"{call.verb} of {resource.plural} {name} fails")
        if call.verb == "watch":
            return await self._watch(request, call.at)
        return self._answered(call, resource, body, request)

    def _answered(self, call: Call, resource: Resource, body: Json, request: web.Request) -> web.Response:
        there = self.objects.get(call.at)
        if call.verb == "list":
            return web.json_response(self._listed(call.at, resource, request))
        if call.verb == "get":
            return web.json_response(there) if there else refusal(404, f"{call.at.name} not found")
        if call.verb in ("delete", "evict"):
            return self._deleted(call, there, body if call.verb == "delete" else body["deleteOptions"])
        return self._taken(call, resource, there, body)

    def _listed(self, at: At, resource: Resource, request: web.Request) -> Json:
        chosen = _selector(request)
        items = [one for key, one in self.objects.items() if _within(key, at) and chosen(one)]
        if _bare(request):
            items = [_without_content(one) for one in items]
        version = f"{resource.group}/{resource.version}".strip("/")
        return {
            "kind": f"{at.kind}List",
            "apiVersion": version,
            "metadata": {"resourceVersion": self._version},
            "items": items,
        }

    def _deleted(self, call: Call, there: Json | None, options: Json) -> web.Response:
        if there is None:
            return refusal(404, f"{call.at.name} not found")
        wanted = options.get("preconditions", {})
        if any(there["metadata"][name] != value for name, value in wanted.items()):
            return refusal(409, f"Precondition failed: {wanted}")
        self.written.append((call, there))
        self.remove(call.at)
        return web.json_response({"kind": "Status", "status": "Success"})

    def _taken(self, call: Call, resource: Resource, there: Json | None, body: Json) -> web.Response:
        at = call.at
        if call.verb == "create":
            made = body["metadata"].get("name") or f"{body['metadata']['generateName']}{uuid4().hex[:8]}"
            at = at._replace(name=made)
            there = self.objects.get(at)
            if there:
                return refusal(409, f"{made} already exists")
        if sum(len(text) * 3 // 4 for text in body.get("data", {}).values()) > _SECRET_BYTES:
            return refusal(422, f'Secret "{at.name}" is invalid: data: Too long: may not be more than 1048576 bytes')
        wanted = body["metadata"].get("uid")
        if wanted and wanted != (there or {}).get("metadata", {}).get("uid"):
            return refusal(409, f"uid mismatch: {wanted}")
        if call.verb == "status" and there is None:
            return refusal(404, f"{at.name} not found")
        version = f"{resource.group}/{resource.version}".strip("/")
        given = {"apiVersion": version, "kind": resource.kind, **body}
        given["metadata"] = {**given["metadata"], "name": at.name, "namespace": at.namespace}
        self.written.append((Call(call.verb, at), there))
        new = {**there, "status": body["status"]} if there and call.verb == "status" else self._complete(given, there)
        return web.json_response(self._save(at, new))

    def _complete(self, given: Json, there: Json | None) -> Json:
        """As it is kept: what the API server adds, and what was there and is not given anew."""
        old = (there or {}).get("metadata", {})
        kept = {name: old[name] for name in _SELF_MADE if name in old}
        made = {"uid": str(uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
        new = {**(there or {}), **given, "metadata": {**made, **given["metadata"], **kept}}
        if there and there.get("spec") != new.get("spec"):
            new["metadata"]["generation"] += 1
        return new

    def _save(self, at: At, new: Json) -> Json:
        old = self.objects.get(at)
        if old == new:
            return old
        new = {**new, "metadata": {**new["metadata"], "resourceVersion": self._next()}}
        self.objects[at] = new
        self._tell("MODIFIED" if old else "ADDED", at, new)
        return new

    def _next(self) -> str:
        self._version = str(next(self._versions))
        return self._version

    # ---- watches, discovery ----------------------------------------------------------------------------------------

    def _tell(self, what: str, at: At, body: Json) -> None:
        self._happened.append((int(body["metadata"]["resourceVersion"]), what, at, body))
        for one in self._watches:
            if _within(at, one.at) and one.chosen(body):
                shown = _without_content(body) if one.bare else body
                one.events.put_nowait({"type": what, "object": shown})

    async def _watch(self, request: web.Request, at: At) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        watch = _Watch(at, _selector(request), _bare(request))
        self._watches.add(watch)
        for what, body in self._since(int(request.query.get("resourceVersion") or 0), at):
            if watch.chosen(body):
                watch.events.put_nowait({"type": what, "object": _without_content(body) if watch.bare else body})
        if request.query.get("timeoutSeconds") == "1":  # the clock is the test's: nothing more will come meanwhile
            watch.events.put_nowait({})
        try:
            while event := await watch.events.get():
                await answer.write(json.dumps(event).encode() + b"\n")
            return answer
        finally:
            self._watches.discard(watch)

    def _since(self, version: int, at: At) -> Iterator[tuple[str, Json]]:
        """What has happened after a resourceVersion; 0: what is there."""
        if not version:
            yield from [("ADDED", body) for key, body in self.objects.items() if _within(key, at)]
        else:
            yield from [(what, body) for when, what, key, body in self._happened if when > version and _within(key, at)]

    def _discovery(self, parts: list[str]) -> Json | None:
        if parts == ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        versions = {(one.group, one.version) for one in self.kinds.values()}
        if parts == ["apis"]:
            groups = sorted((group, version) for group, version in versions if group)
            named = [(group, {"groupVersion": f"{group}/{version}", "version": version}) for group, version in groups]
            listed = [{"name": name, "versions": [one], "preferredVersion": one} for name, one in named]
            return {"kind": "APIGroupList", "groups": listed}
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], (*parts, "", "")[2])
        if len(parts) != (2 if parts[0] == "api" else 3) or (group, version) not in versions:
            return None
        of_group = [one for one in self.kinds.values() if (one.group, one.version) == (group, version)]
        found = [
            {
                "name": one.plural,
                "singularName": "",
                "kind": one.kind,
                "namespaced": one is not NAMESPACES,
                "verbs": _VERBS,
            }
            for one in of_group
        ]
        return {"kind": "APIResourceList", "groupVersion": f"{group}/{version}".strip("/"), "resources": found}


@asynccontextmanager
async def served(memory: Memory) -> AsyncIterator[str]:
    """Its URL."""
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", memory.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def kubeconfig(folder: Path, url: str) -> Path:
    """A file for KUBECONFIG that leads to that server."""
    context = {"cluster": "one", "user": "one", "namespace": "infra"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "one", "cluster": {"server": url}}],
        "users": [{"name": "one", "user": {"token": "of-now"}}],
        "contexts": [{"name": "one", "context": context}],
        "current-context": "one",
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(content), "utf-8")
    return file


def _verb(request: web.Request, name: str, part: str) -> str:
    if part in ("status", "eviction"):
        return {"status": "status", "eviction": "evict"}[part]
    if request.method == "GET":
        return "get" if name else "watch" if request.query.get("watch") else "list"
    return {"POST": "create", "PATCH": "apply", "PUT": "update", "DELETE": "delete"}[request.method]


def _within(key: At, at: At) -> bool:
    return key.kind == at.kind and at.namespace in (None, key.namespace)


def _selector(request: web.Request) -> Callable[[Json], bool]:
    labels = dict(one.split("=", 1) for one in request.query.get("labelSelector", "").split(",") if one)
    field_name, _, name = request.query.get("fieldSelector", "").partition("=")
    name = name if field_name == "metadata.name" else ""

    def chosen(body: Json) -> bool:
        metadata = body["metadata"]
        return name in ("", metadata["name"]) and labels.items() <= (metadata.get("labels") or {}).items()

    return chosen


def _bare(request: web.Request) -> bool:
    return "as=PartialObjectMetadata" in request.headers.get("Accept", "")


def _without_content(body: Json) -> Json:
    return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": body["metadata"]}
