"""Every kind of fault: what it is called in figures, how often it comes, how long it lasts, what is waited for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from e2e.chaos import on_machines, on_models, on_nodes, on_pods, on_processes
from e2e.chaos.on_processes import Inject, leader, one_of, standby

CUT, MAINTAINED = "node cut", "drain, then cut"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. `group` is the line of the report that it counts in.

    `weight`: how often it comes in a deck of all (schedule.py). `lasts_s`: least and most seconds from its injection,
    when that is done, to its healing. `recovery_s`: guards against a pool that never recovers. `overlaps`: the next
    fault may come while it recovers. `prepared`: what comes before its injection is no fault, and counts in no figure.
    """

    name: str
    group: str
    weight: int
    inject: Inject
    lasts_s: tuple[float, float] = (0.0, 0.0)
    recovery_s: float = 180.0
    overlaps: bool = True
    prepared: bool = False


def _killed(component: str, weight: int) -> Kind:
    return Kind(f"kill {component}", "kill -9", weight, partial(on_processes.kill, one_of(component)))


def _deleted(component: str, weight: int) -> Kind:
    return Kind(f"delete {component}", "force-delete", weight, partial(on_pods.delete, one_of(component)))


def _stopped(component: str, weight: int, least_s: float, most_s: float) -> Kind:
    return Kind(
        f"stop {component}", "SIGSTOP", weight, partial(on_processes.stop, one_of(component)), (least_s, most_s)
    )


def _starved(component: str, weight: int) -> Kind:
    return Kind(f"exhaust {component}", "memory limit", weight, partial(on_processes.exhaust, one_of(component)))


def _scaled(component: str, weight: int, field: str) -> Kind:
    up, down = ({field: {"replicas": count}} for count in (3, 2))
    return Kind(f"scale {component}", "scale", weight, partial(on_pods.scale, component, up, down))


# What is over in seconds comes most often: 200 in an hour are 18 s for each. A deck has about a hundred.
_ALL = (
    _killed("engine", 6),
    _killed("gateway", 5),
    Kind("kill leader", "kill -9", 6, partial(on_processes.kill, leader)),
    Kind("kill standby", "kill -9", 3, partial(on_processes.kill, standby)),
    Kind("kill gateway's worker", "kill -9", 4, on_processes.kill_helper),
    _killed("operator", 4),
    _killed("picker", 3),
    _killed("redis", 2),
    Kind("stop leader", "SIGSTOP", 3, partial(on_processes.stop, leader), (3, 10)),
    _stopped("engine", 3, 1, 6),
    _stopped("gateway", 3, 1, 8),
    _stopped("redis", 2, 2, 8),
    _stopped("operator", 1, 5, 20),
    _deleted("engine", 4),
    _deleted("gateway", 4),
    Kind("delete leader", "force-delete", 4, partial(on_pods.delete, leader)),
    Kind("delete standby", "force-delete", 2, partial(on_pods.delete, standby)),
    _deleted("operator", 3),
    _deleted("picker", 2),
    _deleted("redis", 1),
    Kind("API server", "API server unavailable", 4, on_machines.api_away, (3, 15)),
    Kind("Redis", "Redis unavailable", 2, on_pods.redis_away, (2, 10)),
    Kind("node cut", CUT, 4, on_machines.cut, (4, 15)),
    # Longer than Kubernetes waits before it gives a node up: control pods come anew elsewhere.
    Kind("node lost", CUT, 1, on_machines.cut, (70, 90), recovery_s=300, overlaps=False),
    Kind("packet loss", "packet loss", 5, on_machines.loss, (3, 12)),
    Kind("shared memory full", "full disk", 2, on_machines.shared_memory_full, (5, 12)),
    Kind("disk full", "full disk", 2, on_machines.disk_full, (3, 8)),
    _starved("engine", 2),
    _starved("gateway", 2),
    Kind("exhaust leader", "memory limit", 1, partial(on_processes.exhaust, leader)),
    Kind(
        "limit too low",
        "memory limit",
        1,
        partial(
            on_pods.too_little_memory,
            {"requests": {"memory": "32Mi"}, "limits": {"memory": "64Mi"}},
            {"requests": {"memory": "512Mi"}, "limits": None},
        ),
        recovery_s=300,
        overlaps=False,
    ),
    Kind("shorten a model", "edit", 3, on_models.shorten),
    Kind("add a model", "edit", 3, on_models.add),
    Kind("refused change", "edit", 3, on_models.refuse),
    Kind("exchange a model", "edit", 2, on_models.exchange, (0, 3)),
    Kind("source unavailable", "edit", 2, on_machines.source_away, (2, 6)),
    Kind("pool's settings", "edit", 1, on_pods.settings, overlaps=False),
    _scaled("engine", 1, "engines"),
    _scaled("gateway", 1, "gateway"),
    Kind("drain", "drain", 2, on_pods.drain, recovery_s=240, overlaps=False),
    # Kubernetes does not give the node up meanwhile: who answers is who stood by.
    Kind("drain, then cut", MAINTAINED, 1, on_nodes.drain_then_cut, (35, 40), 300, overlaps=False, prepared=True),
    Kind("restart gateways", "upgrade", 1, partial(on_pods.restart, "deployment", "gateway"), overlaps=False),
    Kind("restart engines", "upgrade", 1, partial(on_pods.restart, "statefulset", "engine"), overlaps=False),
    Kind("helm upgrade", "upgrade", 1, on_pods.upgrade, recovery_s=300, overlaps=False),
)
KINDS = {kind.name: kind for kind in _ALL}
# Kinds that are over in seconds, for a run of minutes.
SHORT = (
    *("kill engine", "kill gateway", "kill leader", "kill gateway's worker", "stop leader", "delete leader"),
    *("API server", "node cut", "packet loss", "disk full", "exhaust engine", "shorten a model", "refused change"),
)
