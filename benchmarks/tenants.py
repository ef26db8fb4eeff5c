"""The operator of a large shared cluster: thousands of ModelPools with a key each, beside many more Secrets of others.

A real API server without nodes; the operator and the pool's scheduler are processes of this machine, and a node without
a kubelet says that their pods are ready. Requests are counted by the API server itself. `make bench-tenants`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.report import Row, read_settings, report
from e2e.cluster.layout import default_layout
from e2e.fake_nodes import LABEL, fake_nodes, scheduling
from e2e.kubectl import REPOSITORY, define, in_namespace, kubectl
from e2e.operating import API, MEMORY, operator, resident_mb
from kubernetes import config

from aegaeon_kube import server
from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import GPU_POOLS, MODEL_POOLS, SECRETS, Resource
from aegaeon_operator.spec.tenancy import hashes_of

T = TypeVar("T")
Json = dict[str, Any]
NAMESPACE, POOL, ADDRESS = "aegaeon-tenants", "pool", "127.0.0.7"
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
PODS = Resource("", "v1", "pods", "Pod")
GETS_PER_S, P50_S, P99_S, FOREIGN_MB, REVOKED_S = 2.0, 0.5, 1.5, 20.0, 20.0
REST_S, SETTLED_S, AT_ONCE, ROTATIONS = 60.0, 15.0, 32, 5
# Written at rest by others than the operator: kubelets, and processes that hold a Lease.
_NOT_ITS = ("nodes", "leases")
# The pool's processes that run, and the argument that says as which pod.
_NAMED = {"scheduler": "--holder", "gateway": "--name"}
_WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
# The operator reaches the scheduler by the name of its Service, which nothing resolves outside of a cluster.
_WITH_HOSTS = ("unshare", "--mount", "--propagation", "private", "--", "sh", "-c")
_MOUNT_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'


@dataclass(frozen=True, slots=True)
class Size:
    """How many of what. `namespaces`: of tenants; half of the foreign Secrets is in these, the rest in as many more."""

    model_pools: int
    foreign: int
    namespaces: int
    edits: int

    def namespace_of(self, at: int) -> str:
        return f"tenants-{at % self.namespaces}"

    def foreign_namespace_of(self, at: int) -> str:
        return self.namespace_of(at // 2) if at % 2 else f"others-{at // 2 % self.namespaces}"

    def all_namespaces(self) -> list[str]:
        return [f"{kind}-{at}" for kind in ("tenants", "others") for at in range(self.namespaces)]


@dataclass(frozen=True, slots=True)
class World:
    """What runs. `folder`: of files that end with it."""

    api: server.ApiServer
    kubeconfig: Path
    folder: Path
    size: Size

    async def put(self, resource: Resource, namespace: str | None, bodies: Iterable[Json]) -> float:
        """Create them side by side; seconds."""
        began, rest = time.monotonic(), iter(bodies)

        async def some() -> None:
            for body in rest:
                await self.api.call("POST", resource.path(body["metadata"].get("namespace", namespace)), body=body)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        return time.monotonic() - began

    async def content(self, name: str) -> dict[str, bytes]:
        """Of one of the pool's Secrets; empty while there is none."""
        try:
            body = await self.api.call("GET", SECRETS.path(NAMESPACE, name))
        except KubeError:
            return {}
        return {entry: base64.b64decode(value) for entry, value in body["data"].items()}

    async def pod(self, component: str) -> str:
        """The name of a pod of the pool's; empty while there is none."""
        items = (await self.api.call("GET", PODS.path(NAMESPACE)))["items"]
        names = [body["metadata"]["name"] for body in items]
        return next((name for name in names if name.startswith(f"{POOL}-{component}-")), "")

    def requests(self) -> Counter[tuple[str, str]]:
        """By resource and verb, since the API server's start."""
        total: Counter[tuple[str, str]] = Counter()
        for line in kubectl(self.kubeconfig, "get", "--raw", "/metrics").splitlines():
            if line.startswith("apiserver_request_total{"):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
                total[labels["resource"], labels["verb"]] += int(float(line.rpartition(" ")[2]))
        return total

    def writes(self) -> Counter[str]:
        """By resource, of what is not others'."""
        total: Counter[str] = Counter()
        for (resource, verb), count in self.requests().items():
            if verb in _WRITES and resource not in _NOT_ITS:
                total[resource] += count
        return total

    async def settle(self) -> None:
        """Until nothing is written for a while."""
        before, now = self.writes(), Counter[str]()
        while before != now:
            before = now or before
            await asyncio.sleep(SETTLED_S)
            now = self.writes()


# ---- objects -------------------------------------------------------------------------------------------------------


def gpu_pool() -> Json:
    """It scales to zero engines, so that all is ready without one."""
    spec = {
        "engines": {"replicas": 0, "min": 0, "max": 1},
        "memory": MEMORY,
        "volumes": {"models": {"path": "/srv/models"}},
        "gateway": {"replicas": 1},
        "controlPodTemplate": {"nodeSelector": LABEL},
        "allowedNamespaces": ["*"],
    }
    return {"apiVersion": API, "kind": "GpuPool", "metadata": {"name": POOL}, "spec": spec}


def model(at: int, path: str) -> Json:
    return {"name": f"model-{at}", "source": {"hostPath": path}}


def model_pool(size: Size, at: int) -> Json:
    tenant = {"name": f"t{at}", "keySecretRef": {"name": f"k{at}", "key": "keys"}}
    spec = {"gpuPoolRef": {"name": POOL, "namespace": NAMESPACE}, "models": [model(at, f"m{at}")], "tenants": [tenant]}
    metadata = {"name": f"m{at}", "namespace": size.namespace_of(at)}
    return {"apiVersion": API, "kind": "ModelPool", "metadata": metadata, "spec": spec}


def secret(namespace: str, name: str, text: str) -> Json:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"keys": text}}


def namespace(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


# ---- processes -----------------------------------------------------------------------------------------------------


@contextmanager
def process(world: World, name: str, pod: str, settings: Json, inside: Sequence[str]) -> Iterator[None]:
    """The pool's scheduler or gateway, as its pod would run it, with addresses and folders of this machine."""
    folder = world.folder / name
    own = json.loads(json.dumps(settings).replace("0.0.0.0:", f"{ADDRESS}:")) | {"tls": str(folder / "tls")}
    if "lease" in own:
        own["lease"] |= {"memory": str(folder / "term")}
    file = folder / "config.json"
    file.write_text(json.dumps(own), "utf-8")
    argv = [*inside, sys.executable, "-m", f"aegaeon_{name}", "--config", str(file), _NAMED[name], pod]
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            yield
            if running.poll() is not None:
                raise SystemExit(f"the {name} has ended: {(folder / 'log').read_text('utf-8')}")
        finally:
            running.terminate()
            running.wait()


async def start(world: World, name: str, settings: Json, inside: Sequence[str], stack: ExitStack) -> None:
    """A process by the name of its pod, once there are both the pod and its certificates."""
    certificates = await until(f"certificates of the {name}", partial(world.content, f"{POOL}-{name}-tls"), 60)
    tls = world.folder / name / "tls"
    tls.mkdir(parents=True)
    for file, content in certificates.items():
        (tls / file).write_bytes(content)
    pod = await until(f"the pod of the {name}", partial(world.pod, name), 60)
    stack.enter_context(process(world, name, pod, settings, inside))


async def until(what: str, check: Callable[[], Awaitable[T]], within_s: float, every_s: float = 0.5) -> T:
    """Its first result that is true. Raises SystemExit."""
    deadline = time.monotonic() + within_s
    while not (result := await check()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(every_s)
    return result


# ---- figures -------------------------------------------------------------------------------------------------------


async def edit(world: World, at: int, turn: int) -> float:
    """Seconds from a change of a ModelPool to a status of it."""
    path = MODEL_POOLS.path(world.size.namespace_of(at), f"m{at}")
    began = time.monotonic()
    patch = {"spec": {"models": [model(at, f"edit-{turn}")]}}
    made = await world.api.call("PATCH", path, body=patch, content_type="application/merge-patch+json")

    async def current() -> bool:
        status: Json = (await world.api.call("GET", path)).get("status", {})
        return bool(status.get("observedGeneration") == made["metadata"]["generation"])

    await until(f"m{at} has a status", current, 60, every_s=0.02)
    return time.monotonic() - began


async def rotate(world: World, at: int, turn: int) -> float:
    """Seconds from a change of a tenant's key until the pool has the new one and not the old one."""
    key = f"key-number-{turn}-of-tenant-{at}"
    (digest,) = hashes_of(key)
    path = SECRETS.path(world.size.namespace_of(at), f"k{at}")
    began = time.monotonic()
    body = {"stringData": {"keys": key}}
    await world.api.call("PATCH", path, body=body, content_type="application/merge-patch+json")

    async def arrived() -> bool:
        parts = [await world.content(f"{POOL}-models-{shard}") for shard in range(8)]
        return any(digest.encode() in content for part in parts for content in part.values())

    await until(f"the key of t{at} is another one", arrived, 60, every_s=0.2)
    return time.monotonic() - began


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def at_rest(world: World, pid: int) -> list[Row]:
    await world.settle()
    before, began, used = world.requests(), time.monotonic(), cpu_s(pid)
    await asyncio.sleep(REST_S)
    lasted, used = time.monotonic() - began, cpu_s(pid) - used
    made = world.requests() - before
    for (resource, verb), count in sorted(made.items(), key=lambda entry: -entry[1])[:12]:
        print(f"  {verb:6} {resource:24} {count / lasted:8.2f}/s")
    gets, lists, watches = (made["secrets", verb] / lasted for verb in ("GET", "LIST", "WATCH"))
    written = sum(count for (name, verb), count in made.items() if verb in _WRITES and name not in _NOT_ITS)
    return [
        Row("at rest: GETs of Secrets, lists counted", gets + lists, "/s", GETS_PER_S, "<="),
        Row("at rest: lists of Secrets", lists, "/s"),
        Row("at rest: watches of Secrets begun", watches, "/s"),
        Row("at rest: writes but of Leases", written, "writes", 0, "<="),
        Row("at rest: operator's processor", 100 * used / lasted, "% of a core"),
    ]


async def measure(world: World, pid: int, settled_s: float) -> list[Row]:
    """Everything is there but the foreign Secrets."""
    size = world.size
    await world.settle()
    own = resident_mb(pid)
    bodies = (secret(size.foreign_namespace_of(at), f"foreign-{at}", "x" * 1000) for at in range(size.foreign))
    filled_s = await world.put(SECRETS, None, bodies)
    print(f"{size.foreign} foreign Secrets written in {filled_s:.0f} s", flush=True)
    rest = await at_rest(world, pid)
    draws = random.Random(1)
    edited = sorted([await edit(world, draws.randrange(size.model_pools), turn) for turn in range(size.edits)])
    rotated = [await rotate(world, draws.randrange(size.model_pools), turn) for turn in range(ROTATIONS)]
    return [
        Row("ModelPools with a key each", size.model_pools, ""),
        Row("namespaces of tenants", size.namespaces, ""),
        Row("foreign Secrets", size.foreign, ""),
        Row("all ModelPools have a status after", settled_s, "s"),
        *rest,
        Row("edit to status, p50", edited[len(edited) // 2], "s", P50_S, "<="),
        Row("edit to status, p99", edited[int(0.99 * len(edited))], "s", P99_S, "<="),
        Row(f"another key counts, longest of {ROTATIONS}", max(rotated), "s", REVOKED_S, "<="),
        Row("operator's RSS before the foreign Secrets", own, "MB"),
        Row("operator's RSS for the foreign Secrets", resident_mb(pid) - own, "MB", FOREIGN_MB, "<="),
    ]


# ---- the whole -----------------------------------------------------------------------------------------------------


async def run(world: World, pid: int, stack: ExitStack, inside: Sequence[str]) -> list[Row]:
    """`inside`: what a command begins with that finds the pool's Services by name."""
    size, began = world.size, time.monotonic()
    await world.put(GPU_POOLS, NAMESPACE, [gpu_pool()])
    settings = await until("the pool has a configuration", lambda: world.content(f"{POOL}-config"), 60)
    for name in _NAMED:
        own = json.loads(settings[f"{name}.json"])
        own.pop("prefix_secret_file", None)  # no prompt is computed
        await start(world, name, own, inside, stack)
    await world.put(NAMESPACES, None, map(namespace, size.all_namespaces()))
    keys = (secret(size.namespace_of(at), f"k{at}", f"the-key-of-tenant-{at}") for at in range(size.model_pools))
    await world.put(SECRETS, None, keys)
    await world.put(MODEL_POOLS, None, (model_pool(size, at) for at in range(size.model_pools)))

    async def ready() -> bool:
        items = (await world.api.call("GET", MODEL_POOLS.path(None)))["items"]
        return len(items) == size.model_pools and all(map(_is_ready, items))

    await until("all ModelPools are ready", ready, 300, every_s=3)
    return await measure(world, pid, time.monotonic() - began)


def _is_ready(body: Json) -> bool:
    status = body.get("status", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
    return conditions.get("Ready") == "True" and status.get("observedGeneration") == body["metadata"]["generation"]


async def clean(world: World) -> None:
    """Nothing of it stays; what is in a namespace goes with it."""
    names = [NAMESPACE, *world.size.all_namespaces()]
    await asyncio.gather(*(world.api.call("DELETE", NAMESPACES.path(None, name)) for name in names))


async def all_of_it(size: Size, short: bool) -> bool:
    """Whether all figures hold."""
    layout = default_layout()
    if not layout.kubeconfig.exists():
        raise SystemExit("there is no API server: make cluster-up NODES=0")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aegaeon-tenants-")))
        kubeconfig = in_namespace(layout.kubeconfig, NAMESPACE, folder)
        os.environ["KUBECONFIG"] = str(kubeconfig)
        define(kubeconfig, sorted((REPOSITORY / "crds").glob("*.yaml")))
        kubectl(kubeconfig, "create", "namespace", NAMESPACE)
        api = stack.enter_context(config.new_client_from_config(str(kubeconfig)))
        stack.enter_context(scheduling(layout))
        stack.enter_context(fake_nodes(api, NAMESPACE, {"fake": 16}, every_s=5.0))
        hosts = folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n{ADDRESS} {POOL}-scheduler.{NAMESPACE}.svc\n", "utf-8")
        log = stack.enter_context((folder / "operator.log").open("wb"))
        inside = (*_WITH_HOSTS, _MOUNT_HOSTS, str(hosts))
        running = stack.enter_context(operator(kubeconfig, log, inside, AEGAEON_NAMESPACES=""))
        async with server.connect() as client:
            world = World(client, kubeconfig, folder, size)
            try:
                figures = await run(world, running.pid, stack, inside)
                return report("tenants", figures, short)  # before an end that may fail
            finally:
                print((folder / "operator.log").read_text("utf-8")[-2000:], file=sys.stderr)
                await clean(world)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tenants")
    parser.add_argument("--model-pools", type=int, default=2500)
    parser.add_argument("--foreign", type=int, default=20_000)
    parser.add_argument("--namespaces", type=int, default=250)
    parser.add_argument("--edits", type=int, default=120)
    options = read_settings(parser)
    size = Size(options.model_pools, options.foreign, options.namespaces, options.edits)
    return 0 if asyncio.run(all_of_it(size, options.short)) else 1


if __name__ == "__main__":
    sys.exit(main())
