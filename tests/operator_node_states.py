"""States of a pool with a standby, by the nodes that its pods are on; see operator_states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from operator_objects import Json, gpu_pool
from operator_state import PODS, State, pod

STANDBY = "pool-standby-6f8-y"


def of_nodes(model_pool: Json) -> Iterator[State]:
    """All ready, on one node or two."""
    two: dict[str, Any] = {
        "objects": (gpu_pool(scheduling={"standby": True}), model_pool),
        "components": {**PODS, STANDBY: "standby"},
    }
    apart = {STANDBY: on("node-2", STANDBY, "standby")}
    gateway = "pool-gateway-5c4-b"
    keeps = {"keeps_standby": "it will be moved when node node-2 has been free for 60 s"}
    yield State("Scheduler and standby share a node", seen=keeps, **two)
    yield State("All gateways share a node", pods=apart, **two)
    yield State("Nothing hangs on one node", pods={**apart, gateway: on("node-2", gateway, "gateway")}, **two)


def on(node: str, name: str, component: str) -> Json:
    """A ready pod there."""
    body = pod(name, component)
    body["spec"] = {"nodeName": node}
    return body
