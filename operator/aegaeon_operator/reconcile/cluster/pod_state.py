"""Reasons why pods are not ready: a reason for programs, and a message that names one pod.

Of several pods the message names the one that most needs action, and counts the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Subject
from aegaeon_operator.reconcile.cluster.names import KUEUE_GATES, KUEUE_QUEUE

_PULLS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
)
# Reasons of a normal start or end.
STARTING = "PodsStarting"
ENDING = "PodsEnding"
RUNS = "PodsNotReady"
# Normal as well: a queue or another controller keeps the pod until there is quota.
SUSPENDED = "Suspended"
_STARTS = ("ContainerCreating", "PodInitializing")
_OUT_OF_MEMORY = "OOMKilled"
_KILLED = 137
# Reasons that need action, in order of urgency; others resolve by themselves.
_GRAVEST = (
    "OutOfMemory",
    "Crashing",
    "ImageNotPulled",
    "ContainerNotCreated",
    "CannotStart",
    "Unschedulable",
    "NodeLost",
    SUSPENDED,
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem: the reason for a condition, and a sentence about an object."""

    reason: str
    text: str


Warnings = Mapping[ChildKey, str]
"""Message of the newest Warning Event of an object whose own status does not explain why it is not ready"""


def trouble(pods: Iterable[Json], warnings: Warnings) -> Trouble | None:
    """Return the problem of a component's pods; None if none is known."""
    pods = list(pods)
    # A failed pod remains beside its replacement.
    alive = [pod for pod in pods if pod.get("status", {}).get("phase") != "Failed"] or pods
    by_name = {pod["metadata"]["name"]: _of_pod(pod, warnings) for pod in alive}
    troubled = [(_rank(problem.reason), name, problem) for name, problem in sorted(by_name.items()) if problem]
    if not troubled:
        return None
    _, name, first = min(troubled, key=lambda entry: entry[:2])
    more = f" (and {len(troubled) - 1} more)" if len(troubled) > 1 else ""
    return Trouble(first.reason, f"{name} {first.text}{more}")


def unexplained(pods: Iterable[Json]) -> Iterator[Subject]:
    """Yield pods that wait for something that only their Events report: a volume, a network."""
    for pod in pods:
        waiting = [container.get("state", {}).get("waiting", {}).get("reason") for container in _containers(pod)]
        if _is_scheduled(pod) and any(reason in _STARTS for reason in waiting):
            yield Subject.of(pod)


def is_ready(pod: Json) -> bool:
    """Return whether a pod is ready and not terminating."""
    return "deletionTimestamp" not in pod["metadata"] and _condition(pod, "Ready").get("status") == "True"


def is_ready_for(pod: Json, seconds: float, now: datetime) -> bool:
    """Return whether a pod has been ready for this time."""
    since = _condition(pod, "Ready").get("lastTransitionTime")
    return is_ready(pod) and since is not None and (now - datetime.fromisoformat(since)).total_seconds() >= seconds


def finds_no_node(pod: Json) -> bool:
    """Return whether the Kubernetes scheduler reported the pod as unschedulable."""
    return not _is_scheduled(pod) and bool(_condition(pod, "PodScheduled").get("message"))


def _rank(reason: str) -> int:
    return _GRAVEST.index(reason) if reason in _GRAVEST else len(_GRAVEST)


def _of_pod(pod: Json, warnings: Warnings) -> Trouble | None:
    status = pod.get("status", {})
    if is_ready(pod):
        return None
    if "deletionTimestamp" in pod["metadata"]:
        return Trouble(ENDING, f"is terminating{_on_node(pod)}")
    if status.get("phase") == "Failed":
        evicted = status.get("reason") == "Evicted"
        cause = status.get("message") or status.get("reason") or "its containers exited"
        return Trouble("Evicted" if evicted else "Crashing", f"failed: {_line(cause)}")
    if not _is_scheduled(pod):
        return _of_unscheduled(pod)
    problem = next((problem for problem in map(_of_container, _containers(pod)) if problem), None)
    return problem or _of_node(pod, warnings.get(ChildKey.of(pod), ""))


def _of_unscheduled(pod: Json) -> Trouble:
    if gates := [gate["name"] for gate in pod.get("spec", {}).get("schedulingGates", ())]:
        return Trouble(SUSPENDED, _suspended(pod, gates))
    message = _condition(pod, "PodScheduled").get("message", "")
    if message:
        return Trouble("Unschedulable", f"is unschedulable: {_line(message)}")
    return Trouble(STARTING, "is not scheduled to a node yet")


def _suspended(pod: Json, gates: list[str]) -> str:
    """Return why a pod with scheduling gates is not scheduled yet."""
    queue = pod["metadata"].get("labels", {}).get(KUEUE_QUEUE)
    if queue and any(gate.startswith(KUEUE_GATES) for gate in gates):
        return f"is suspended: Kueue has not admitted it from LocalQueue {queue} yet"
    return f"is suspended by scheduling gate {', '.join(gates)}"


def _of_container(container: Json) -> Trouble | None:
    """Return a container's problem that needs action; None: it runs or is starting."""
    waiting = container.get("state", {}).get("waiting", {})
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _PULLS:
        cause = _line(message.rpartition("desc = ")[2]) if "desc = " in message else reason
        return Trouble("ImageNotPulled", f"cannot pull image {container.get('image', '')}: {cause}")
    ended = _ended(container)
    if ended and (ended.get("exitCode") or ended.get("reason") == _OUT_OF_MEMORY):
        return _crash(container, ended)
    if reason and reason not in (*_STARTS, "CrashLoopBackOff"):
        return Trouble("ContainerNotCreated", f"cannot create its container: {_line(message) or reason}")
    return None


def _ended(container: Json) -> Json | None:
    """Return the last termination of a container, unless it is running again."""
    state = container.get("state", {})
    if container.get("ready") or ("running" in state and container.get("started")):
        return None
    terminated: Json | None = state.get("terminated") or container.get("lastState", {}).get("terminated")
    return terminated


def _crash(container: Json, ended: Json) -> Trouble:
    count = container.get("restartCount", 0)
    times = f"container {container['name']} " + (f"has restarted {count} times" if count else "is being restarted")
    if ended.get("reason") == _OUT_OF_MEMORY:
        return Trouble("OutOfMemory", f"exceeded its memory limit: {times}; raise the limit in the pod template")
    if ended.get("exitCode") == _KILLED:
        return Trouble(
            "Crashing", f"was killed by SIGKILL (exit code {_KILLED}), not because of its memory limit: {times}"
        )
    return Trouble(
        "Crashing", f"crashes with exit code {ended.get('exitCode')}: {times}; see `kubectl logs --previous`"
    )


def _of_node(pod: Json, warning: str) -> Trouble:
    """Return the problem of a pod without a failed container: it starts, a probe fails, or its node is lost."""
    containers = list(_containers(pod))
    if containers and all(container.get("ready") for container in containers):
        return Trouble("NodeLost", f"is disconnected: its node {pod['spec'].get('nodeName', '')} does not answer")
    if containers and all(container.get("started") for container in containers):
        return Trouble(RUNS, f"is running{_on_node(pod)}, but not ready")
    if warning:
        return Trouble("CannotStart", f"cannot start{_on_node(pod)}: {_line(warning)}")
    return Trouble(STARTING, f"is starting{_on_node(pod)}")


def _containers(pod: Json) -> Iterator[Json]:
    """Yield the statuses of a pod's containers, without completed init containers."""
    status = pod.get("status", {})
    for container in status.get("initContainerStatuses", ()):
        if not container.get("ready"):
            yield container
    yield from status.get("containerStatuses", ())


def _condition(pod: Json, kind: str) -> Json:
    conditions = pod.get("status", {}).get("conditions", ())
    condition: Json = next((condition for condition in conditions if condition["type"] == kind), {})
    return condition


def _is_scheduled(pod: Json) -> bool:
    return bool(pod.get("spec", {}).get("nodeName"))


def _on_node(pod: Json) -> str:
    node = pod.get("spec", {}).get("nodeName")
    return f" on node {node}" if node else ""


def _line(text: str) -> str:
    """Return a text on one line without its final full stop, for use inside a sentence."""
    return " ".join(text.split()).rstrip(".")
