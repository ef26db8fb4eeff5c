"""What operators of a cluster do to pods, by hand or by upgrades: delete, drain, restart, scale, change settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.chaos.on_processes import Choose
from e2e.chaos.schedule import Drawn
from e2e.chaos.world import World
from e2e.cluster import images
from e2e.installation import WHERE
from e2e.kubectl import CHART, helm

_ROLL_S = 240.0  # until every pod of a pool is another one
DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
NEXT = "next"


@contextmanager
def delete(choose: Choose, world: World, drawn: Drawn) -> Iterator[str]:
    """At once, as of a lost node: without SIGTERM to the process."""
    pod = choose(world, drawn)
    world.end(pod)
    run = world.kubectl if pod.namespace == world.pool.namespace else world.system
    run("delete", "pod", pod.name, "--grace-period=0", "--force", "--wait=false")
    yield pod.name


@contextmanager
def drain(world: World, drawn: Drawn) -> Iterator[str]:
    one = drawn.choose(world.layout.nodes)
    try:
        world.kubectl("drain", one.name, *DRAIN)
        yield one.name
    finally:
        world.kubectl("uncordon", one.name)


@contextmanager
def redis_away(world: World, drawn: Drawn) -> Iterator[str]:
    try:
        world.system("scale", "deployment", "aegaeon-redis", "--replicas=0")
        world.system("wait", "--for=delete", "pod", "-l", "app.kubernetes.io/name=aegaeon-redis", "--timeout=240s")
        yield "Redis"
    finally:
        world.system("scale", "deployment", "aegaeon-redis", "--replicas=1")


@contextmanager
def restart(kind: str, component: str, world: World, drawn: Drawn) -> Iterator[str]:
    """As `kubectl rollout restart`."""
    old = world.uids(component)
    world.kubectl("rollout", "restart", f"{kind}/{world.pool.name}-{component}")
    _replaced(world, old, component)
    yield component


@contextmanager
def scale(
    component: str, one_more: dict[str, Any], as_it_was: dict[str, Any], world: World, drawn: Drawn
) -> Iterator[str]:
    """One pod more of a component, and back."""
    count = world.wanted[component]
    try:
        world.wanted[component] = count + 1
        world.patch(one_more)
        world.until(f"{count + 1} of {component} are ready", lambda: not world.missing(), _ROLL_S)
        yield component
    finally:
        world.wanted[component] = count
        world.patch(as_it_was)


@contextmanager
def settings(world: World, drawn: Drawn) -> Iterator[str]:
    """A setting of the GpuPool that schedulers and gateways are started anew for."""
    changed = ("scheduler", "standby", "gateway")
    for hold in ("31s", None):
        old = world.uids(*changed)
        world.patch({"scheduling": {"hold": hold}})
        _replaced(world, old, *changed)
    yield "scheduling.hold"


@contextmanager
def too_little_memory(amounts: dict[str, Any], usual: dict[str, Any], world: World, drawn: Drawn) -> Iterator[str]:
    """A limit that no engine can live with; it is taken back when one has died of it."""
    old = world.uids("engine")

    def dying() -> bool:
        return any(pod.restarts for pod in world.view.of("engine") if pod.uid not in old)

    try:
        world.patch({"podTemplate": {"resources": amounts}})
        world.until("an engine has died of it", dying, _ROLL_S)
        yield "podTemplate.resources"
    finally:
        world.patch({"podTemplate": {"resources": usual}})


@contextmanager
def upgrade(world: World, drawn: Drawn) -> Iterator[str]:
    """`helm upgrade` to another tag: the operator, and then every pod of the pool."""
    world.version = {NEXT: images.VERSION}.get(world.version, NEXT)
    values = ("--reuse-values", "--set", f"images.tag={world.version}")
    helm(world.pool.kubeconfig, "upgrade", "aegaeon", CHART, *WHERE, *values, "--wait", "--timeout=240s")
    world.until(f"all pods are of {world.version}", lambda: _all_of(world, world.version), _ROLL_S)
    yield world.version


def _all_of(world: World, version: str) -> bool:
    pods = [pod for pod in world.view.pods() if pod.component not in ("redis", "dns") and not pod.ending]
    return all(image.endswith(f":{version}") for pod in pods for image in pod.images)


def _replaced(world: World, old: set[str], *components: str) -> None:
    world.until(
        f"all of {', '.join(components)} are replaced",
        lambda: not old & world.uids(*components) and not world.missing(),
        _ROLL_S,
    )
