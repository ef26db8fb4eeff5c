"""A pool to try faults on: two engines, two gateways, a standby, a picker, Redis, two tenants, and their load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from aegaeon_cli.demo.check import check
from e2e.chaos.gateways import Gateways
from e2e.chaos.on_machines import DISK, make_disks
from e2e.chaos.on_models import BLUE_MODEL, blue, red
from e2e.chaos.on_pods import NEXT
from e2e.chaos.readiness import Readiness
from e2e.chaos.verdict import Compare, Verdict
from e2e.chaos.view import View
from e2e.chaos.web import serving
from e2e.chaos.world import World
from e2e.cluster import definitions, images
from e2e.cluster.layout import Layout
from e2e.installation import SYSTEM
from e2e.kubectl import define
from e2e.load import Load
from e2e.manifests import BLUE, POOL, RED, gpu_pool, keys
from e2e.pool import a_pool

NAMESPACE = "aegaeon-chaos"
_KEYS = {"llama": RED, "qwen2": RED, BLUE_MODEL: BLUE}
_WANTED = {"scheduler": 1, "standby": 1, "gateway": 2, "engine": 2, "picker": 1, "operator": 2, "redis": 1, "dns": 2}
_PROBE_S = 0.5
# Longer than any request may take: `hold`, and two minutes more after an engine was lost.
_PATIENCE_S = 240.0
_PEOPLE = 2


def prepare(kubeconfig: Path, layout: Layout) -> None:
    """What the pool needs of the cluster, before the chart is installed."""
    crds = definitions.files(definitions.INFERENCE_POOL)
    define(kubeconfig, crds)
    images.tag_product(layout, NEXT)
    make_disks(layout)


@contextmanager
def under_load(kubeconfig: Path, layout: Layout, models: Path, compare: Compare = check) -> Iterator[World]:
    """Everything ready, and asked. `prepare` was called, the chart is installed with a Redis."""
    with ExitStack() as stack:
        web = stack.enter_context(serving(layout.machine_ip, models))
        pool = stack.enter_context(a_pool(kubeconfig, NAMESPACE, _manifest(web.url)))
        pool.apply(keys("red", RED), keys("blue", BLUE), red(), blue(web.source("first", BLUE_MODEL)))
        pool.wait_until_ready()
        view = View(kubeconfig, layout, NAMESPACE, SYSTEM)
        stack.callback(view.close)
        gateways = stack.enter_context(Gateways(view, f"{POOL}-gateway"))
        readiness = stack.enter_context(Readiness(view, POOL))
        load = Load(gateways.next, _KEYS, models, _PEOPLE, patience_s=_PATIENCE_S, probe_s=_PROBE_S)
        stack.enter_context(load)
        world = World(
            layout=layout,
            pool=pool,
            view=view,
            gateways=gateways,
            load=load,
            verdict=Verdict(models, compare),
            web=web,
            models=tuple(_KEYS),
            wanted=dict(_WANTED),
            version=images.VERSION,
            readiness=readiness,
        )
        world.until("the pool is whole", lambda: not world.missing(), 180)
        yield world


def _manifest(web: str) -> dict[str, Any]:
    made = gpu_pool(
        engines={"replicas": 2},
        gateway={"replicas": 2, "endpointPicker": {}},
        scheduling={"standby": True},
        allowedSources=[web],
    )
    made["spec"]["memory"]["disk"] = {"path": DISK, "size": "48Mi"}
    return made
