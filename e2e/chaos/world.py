"""What a fault may touch, and how it is known that the pool is whole again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from e2e.chaos.containers import processes
from e2e.chaos.errors import ChaosError, MissedError
from e2e.chaos.gateways import Gateways
from e2e.chaos.readiness import Readiness, untrue_s
from e2e.chaos.schedule import Drawn
from e2e.chaos.verdict import Verdict
from e2e.chaos.view import UNREACHABLE, Seen, View
from e2e.chaos.web import WebServer
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout, Node
from e2e.kubectl import kubectl
from e2e.load import Load
from e2e.pool import PodsOfPool

_EVERY_S = 0.3
_NEVER = float("inf")
# A command that asks an API server which does not answer is given up.
_REQUEST = "--request-timeout=30s"
_TRIES = 3


@dataclass
class World:
    """A pool under load. `wanted`: pods of each component; `version`: tag of the product's images; `ended`: containers
    that faults have killed; `late_connects`: seconds after a node's cut at which a request was last sent to it."""

    layout: Layout
    pool: PodsOfPool
    view: View
    gateways: Gateways
    load: Load
    verdict: Verdict
    web: WebServer
    models: tuple[str, ...]
    wanted: dict[str, int]
    version: str
    readiness: Readiness
    ended: set[str] = field(default_factory=set)
    late_connects: list[float] = field(default_factory=list)

    def kubectl(self, *words: str, namespace: str = "", stdin: str | None = None) -> str:
        """In the pool's namespace, if no other one is given. An API server that is just back may need a second try."""
        words = ("-n", namespace or self.pool.namespace, _REQUEST, *words)
        for _ in range(_TRIES - 1):
            with suppress(ClusterError):
                return kubectl(self.pool.kubeconfig, *words, stdin=stdin)
            time.sleep(1)
        return kubectl(self.pool.kubeconfig, *words, stdin=stdin)

    def system(self, *words: str) -> str:
        """kubectl in the namespace of the operator and Redis."""
        return self.kubectl(*words, namespace=self.view.system)

    def apply(self, manifest: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def pick(self, component: str, drawn: Drawn) -> Seen:
        """One of those that run. Raises MissedError when none does."""
        try:
            return drawn.choose([one for one in self.view.of(component) if one.container])
        except IndexError:
            raise MissedError(f"no {component} runs") from None

    def leader(self) -> Seen:
        """The scheduler that leads. Raises MissedError when it is gone already."""
        name = self.view.leader(self.pool.name)
        return self._one(lambda one: one.name == name, "scheduler that leads")

    def standby(self) -> Seen:
        """The scheduler that does not lead."""
        name = self.view.leader(self.pool.name)
        return self._one(lambda one: one.component in ("scheduler", "standby") and one.name != name, "standby")

    def _one(self, is_it: Callable[[Seen], bool], what: str) -> Seen:
        found = [one for one in self.view.pods() if is_it(one) and one.container and not one.ending]
        if not found:
            raise MissedError(f"there is no {what}")
        return found[0]

    def node(self, pod: Seen) -> Node:
        return self.view.node(pod.node)

    def main_process(self, pod: Seen) -> int:
        return processes(self.node(pod), pod)[0]

    def end(self, pod: Seen) -> None:
        """Said before its container is killed: until there is another one, the pool is not whole, whatever is said."""
        self.harm([pod])
        self.ended.add(pod.container)

    def harm(self, pods: Iterable[Seen]) -> None:
        """Said before it is done: requests at gateways among these may fail."""
        self.gateways.harm(pod.url for pod in pods if pod.component == "gateway")

    def on(self, node: Node) -> list[Seen]:
        return [pod for pod in self.view.pods() if pod.node == node.name]

    def uids(self, *components: str) -> set[str]:
        return {pod.uid for component in components for pod in self.view.of(component)}

    def missing(self) -> str:
        """What is not as it should be; empty when everything is."""
        try:
            return self._missing_pods() or next(self.view.unready(), "") or self._unreached()
        except UNREACHABLE as error:
            return f"the API server does not answer: {error}"

    def _missing_pods(self) -> str:
        pods = [pod for pod in self.view.pods() if not pod.ending]
        for component, count in self.wanted.items():
            there = [pod for pod in pods if pod.component == component]
            if any(pod.container in self.ended for pod in there):
                return f"the end of one of {component} is not noticed yet"
            if len(there) != count or not all(pod.ready for pod in there):
                return f"{sum(pod.ready for pod in there)} of {count} of {component} are ready, {len(there)} are there"
        return ""

    def _unreached(self) -> str:
        count, wanted = len(self.gateways.urls), self.wanted["gateway"]
        return "" if count == wanted else f"{count} of {wanted} gateways are in the Service"

    def first_token(self, since: float) -> float:
        """When the first of the requests that were sent after `since` had a token, monotonic; infinite: none has."""
        return min((at for _, _, at in self._tokens(since)), default=_NEVER)

    def answered(self, since: float) -> float:
        """When each model, and each gateway, had answered a request of later than `since`."""
        first: dict[str, float] = {}
        for url, model, at in self._tokens(since):
            for one in (url, model):
                first[one] = min(at, first.get(one, _NEVER))
        return max(first.get(one, _NEVER) for one in (*self.models, *self.gateways.urls))

    def untrue_s(self, since: float = 0.0) -> float:
        """The longest time after `since` in which the pool said Ready and nothing was answered."""
        samples = [sample for sample in self.readiness.samples if sample[0] >= since]
        return untrue_s(samples, sorted(at for _, _, at in self._tokens(0.0)))

    def _tokens(self, since: float) -> Iterator[tuple[str, str, float]]:
        """Gateway, model and time of the first token of every request sent after `since`."""
        for url, one in self.load.by_url:
            if one.sent >= since and one.times:
                yield url, one.chat.model, one.sent + one.times[0]

    def until(self, what: str, true: Callable[[], bool], within_s: float) -> None:
        """Wait. Raises ChaosError with what there is instead."""
        deadline = time.monotonic() + within_s
        while not self._holds(true):
            if time.monotonic() > deadline:
                missing = self.missing() or "nothing is missing"
                raise ChaosError(f"not within {within_s:g} s: {what}; {missing}\n{self.describe()}")
            time.sleep(_EVERY_S)  # nothing to wait on: what is polled is a client's view

    def _holds(self, true: Callable[[], bool]) -> bool:
        try:
            return true()
        except UNREACHABLE:
            return False

    def describe(self) -> str:
        """The pool as kubectl shows it."""
        try:
            return self.kubectl("get", "gpool,mpool,pods", "-o", "wide") + self.system("get", "pods", "-o", "wide")
        except ClusterError as error:
            return str(error)

    def patch(self, spec: dict[str, Any]) -> None:
        """The GpuPool's; None takes a field away."""
        self.kubectl("patch", "gpupool", self.pool.name, "--type=merge", "-p", json.dumps({"spec": spec}))
