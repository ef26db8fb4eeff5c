"""Why pods are not ready, as the API server has them: a word for programs, and a sentence that names one pod.

Of several, the one that needs a person most is named, and the others are counted.
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
# Nothing is wrong with what starts.
STARTING = "PodsStarting"
ENDING = "PodsEnding"
RUNS = "PodsNotReady"
# Nothing is wrong, either: a queue or another controller holds it until there is quota.
SUSPENDED = "Suspended"
_STARTS = ("ContainerCreating", "PodInitializing")
_OUT_OF_MEMORY = "OOMKilled"
_KILLED = 137
# What needs a person first. What is not in it is on its way.
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
    """Why something is not ready: a reason of a condition, and a sentence about the object that it names."""

    reason: str
    text: str


Warnings = Mapping[ChildKey, str]
"""What the newest Event of type Warning says of an object, for those whose own status does not tell"""


def trouble(pods: Iterable[Json], warnings: Warnings) -> Trouble | None:
    """Of the pods of one component. None: nothing is known to be wrong with any."""
    there = list(pods)
    # A pod that failed stays to be looked at, beside the one that was made in its place.
    alive = [one for one in there if one.get("status", {}).get("phase") != "Failed"] or there
    found = {one["metadata"]["name"]: _of_pod(one, warnings) for one in alive}
    troubled = [(_rank(one.reason), name, one) for name, one in sorted(found.items()) if one]
    if not troubled:
        return None
    _, name, first = min(troubled, key=lambda one: one[:2])
    others = f" (and {len(troubled) - 1} more)" if len(troubled) > 1 else ""
    return Trouble(first.reason, f"{name} {first.text}{others}")


def unexplained(pods: Iterable[Json]) -> Iterator[Subject]:
    """Pods that wait for something which only their Events tell: a volume, a network."""
    for pod in pods:
        waiting = [one.get("state", {}).get("waiting", {}).get("reason") for one in _containers(pod)]
        if _is_scheduled(pod) and any(reason in _STARTS for reason in waiting):
            yield Subject.of(pod)


def is_ready(pod: Json) -> bool:
    """Whether its work may come."""
    return "deletionTimestamp" not in pod["metadata"] and _condition(pod, "Ready").get("status") == "True"


def is_ready_for(pod: Json, seconds: float, now: datetime) -> bool:
    """Whether it has been ready for so long."""
    since = _condition(pod, "Ready").get("lastTransitionTime")
    return is_ready(pod) and since is not None and (now - datetime.fromisoformat(since)).total_seconds() >= seconds


def finds_no_node(pod: Json) -> bool:
    """The scheduler of Kubernetes has said so."""
    return not _is_scheduled(pod) and bool(_condition(pod, "PodScheduled").get("message"))


def _rank(reason: str) -> int:
    return _GRAVEST.index(reason) if reason in _GRAVEST else len(_GRAVEST)


def _of_pod(pod: Json, warnings: Warnings) -> Trouble | None:
    status = pod.get("status", {})
    if is_ready(pod):
        return None
    if "deletionTimestamp" in pod["metadata"]:
        return Trouble(ENDING, f"is ending{_on_node(pod)}")
    if status.get("phase") == "Failed":
        evicted = status.get("reason") == "Evicted"
        said = status.get("message") or status.get("reason") or "its containers ended"
        return Trouble("Evicted" if evicted else "Crashing", f"failed: {_line(said)}")
    if not _is_scheduled(pod):
        return _of_unscheduled(pod)
    found = next((one for one in map(_of_container, _containers(pod)) if one), None)
    return found or _of_node(pod, warnings.get(ChildKey.of(pod), ""))


def _of_unscheduled(pod: Json) -> Trouble:
    if gates := [one["name"] for one in pod.get("spec", {}).get("schedulingGates", ())]:
        return Trouble(SUSPENDED, _held(pod, gates))
    placed = _condition(pod, "PodScheduled").get("message", "")
    if placed:
        return Trouble("Unschedulable", f"finds no node: {_line(placed)}")
    return Trouble(STARTING, "is not placed on a node yet")


def _held(pod: Json, gates: list[str]) -> str:
    """Why the scheduler of Kubernetes does not look at it yet."""
    queue = pod["metadata"].get("labels", {}).get(KUEUE_QUEUE)
    if queue and any(one.startswith(KUEUE_GATES) for one in gates):
        return f"is suspended: Kueue has not admitted it from LocalQueue {queue} yet"
    return f"is suspended by scheduling gate {', '.join(gates)}"


def _of_container(container: Json) -> Trouble | None:
    """What a person has to look at. None: it runs, or is about to."""
    waiting = container.get("state", {}).get("waiting", {})
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _PULLS:
        cause = _line(message.rpartition("desc = ")[2]) if "desc = " in message else reason
        return Trouble("ImageNotPulled", f"cannot pull image {container.get('image', '')}: {cause}")
    ended = _ended(container)
    if ended and (ended.get("exitCode") or ended.get("reason") == _OUT_OF_MEMORY):
        return _crash(container, ended)
    if reason and reason not in (*_STARTS, "CrashLoopBackOff"):
        return Trouble("ContainerNotCreated", f"has no container: {_line(message) or reason}")
    return None


def _ended(container: Json) -> Json | None:
    """How it ended, unless it is up again: then that is over, and why it is not ready is another question."""
    state = container.get("state", {})
    if container.get("ready") or ("running" in state and container.get("started")):
        return None
    found: Json | None = state.get("terminated") or container.get("lastState", {}).get("terminated")
    return found


def _crash(container: Json, ended: Json) -> Trouble:
    count = container.get("restartCount", 0)
    times = f"container {container['name']} " + (f"has restarted {count} times" if count else "is started again")
    if ended.get("reason") == _OUT_OF_MEMORY:
        return Trouble("OutOfMemory", f"needs more memory than its limit: {times}; raise the pod template's limits")
    if ended.get("exitCode") == _KILLED:
        return Trouble("Crashing", f"was killed (exit code {_KILLED}: SIGKILL, not for its memory limit): {times}")
    return Trouble(
        "Crashing", f"crashes with exit code {ended.get('exitCode')}: {times}; see `kubectl logs --previous`"
    )


def _of_node(pod: Json, warning: str) -> Trouble:
    """No container is to blame: it starts, its probe fails, or its node is gone."""
    containers = list(_containers(pod))
    if containers and all(one.get("ready") for one in containers):
        return Trouble("NodeLost", f"is cut off: its node {pod['spec'].get('nodeName', '')} does not answer")
    if containers and all(one.get("started") for one in containers):
        return Trouble(RUNS, f"runs{_on_node(pod)}, but is not ready")
    if warning:
        return Trouble("CannotStart", f"cannot start{_on_node(pod)}: {_line(warning)}")
    return Trouble(STARTING, f"starts{_on_node(pod)}")


def _containers(pod: Json) -> Iterator[Json]:
    """Statuses of those that have work to do: an init container that has done its own has none."""
    status = pod.get("status", {})
    for one in status.get("initContainerStatuses", ()):
        if not one.get("ready"):
            yield one
    yield from status.get("containerStatuses", ())


def _condition(pod: Json, kind: str) -> Json:
    found: Json = next((one for one in pod.get("status", {}).get("conditions", ()) if one["type"] == kind), {})
    return found


def _is_scheduled(pod: Json) -> bool:
    return bool(pod.get("spec", {}).get("nodeName"))


def _on_node(pod: Json) -> str:
    node = pod.get("spec", {}).get("nodeName")
    return f" on node {node}" if node else ""


def _line(text: str) -> str:
    """On one line, without a full stop that would stand inside our sentence."""
    return " ".join(text.split()).rstrip(".")
