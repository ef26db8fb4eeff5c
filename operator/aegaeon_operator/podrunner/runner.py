"""Brings pods up in the order of their dependencies, keeps them up, and takes them down in the order of draining."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from aegaeon_operator.errors import RunnerError
from aegaeon_operator.podrunner.child import Child, Reporter, RestartPolicy
from aegaeon_operator.podrunner.patience import Patience
from aegaeon_operator.podrunner.probe import ready
from aegaeon_operator.podrunner.runfolder import RunFolder
from aegaeon_operator.reconcile import DesiredPod, PodRole

_PROBE_INTERVAL_S = 0.1


class PodRunner:
    """Owns the child processes of one run. Use within a running event loop, from its main thread's loop."""

    def __init__(
        self, pods: Sequence[DesiredPod], folder: RunFolder, policy: RestartPolicy, reporter: Reporter
    ) -> None:
        self._folder = folder
        self._policy = policy
        self._reporter = reporter
        self._children = {pod.name: self._child(pod) for pod in pods}
        self._ready = {pod.name: asyncio.Event() for pod in pods}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the pods that run at this moment."""
        return {name: child.pid for name, child in self._children.items() if child.pid is not None}

    async def start(self) -> None:
        """Start every pod but those on demand, and return when they are ready.

        Raises RunnerError; call `drain` afterwards in any case.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for child in self._children.values():
                    _write(child.pod)
                    if not child.pod.on_demand:
                        group.create_task(self._bring_up(child))
        except ExceptionGroup as failed:  # not except*: before Python 3.11.4 what is raised there is put into a group
            expected, unexpected = failed.split(RunnerError)
            if expected is None or unexpected is not None:
                raise
            raise expected.exceptions[0] from None

    def begin(self, name: str) -> None:
        """Keep this pod running from here on; whether it is ready is not waited for."""
        if not self._children[name].started:
            self._children[name].start()

    async def end(self, name: str) -> None:
        """Stop this pod, with its grace; it may begin again."""
        child = self._children[name]
        await child.stop()
        self._children[name] = self._child(child.pod)

    async def drain(self) -> None:
        """Stop gateways, then sidecars, then schedulers; each wave is gone before the next one is asked."""
        for role in PodRole:
            wave = [child for child in self._children.values() if child.pod.role is role]
            await asyncio.gather(*(child.stop() for child in wave))

    def kill(self) -> None:
        """End everything at once, without drain. `drain` still has to be awaited."""
        for child in self._children.values():
            child.kill()

    def _child(self, pod: DesiredPod) -> Child:
        return Child(pod, self._policy, self._folder.log_file(pod.name), self._reporter)

    async def _bring_up(self, child: Child) -> None:
        for name in child.pod.depends:
            await self._ready[name].wait()
        child.start()
        await self._until_ready(child)
        self._ready[child.pod.name].set()

    async def _until_ready(self, child: Child) -> None:
        """A pod that computes is waited for: on a busy machine, to import vLLM alone may take minutes."""
        patience = Patience(
            self._policy.start_timeout_s, self._policy.progress_every_s, asyncio.get_running_loop().time
        )
        while not await ready(child.pod.probe):
            if child.misconfigured:
                raise _failed(child, "cannot run as it is configured")
            if not patience.lasts(child.computed_s):
                raise _failed(child, f"was not ready within {self._policy.start_timeout_s:g} s, and does nothing")
            if patience.is_to_report():
                doing = child.last_lines[-1] if child.last_lines else "it has written nothing yet"
                self._reporter.event(child.pod.name, f"not ready after {patience.waited_s:.0f} s: {doing}")
            if child.deaths >= self._policy.early_deaths:
                raise _failed(child, f"ended {child.deaths} times before it was ready")
            await asyncio.sleep(_PROBE_INTERVAL_S)


def _write(pod: DesiredPod) -> None:
    for file, content in {**pod.files, pod.config_file: pod.config}.items():
        file.write_text(json.dumps(content, indent=2), "utf-8")


def _failed(child: Child, what: str) -> RunnerError:
    lines = "\n".join(f"  {line}" for line in child.last_lines)
    return RunnerError(f"pod {child.pod.name} {what}; its last lines:\n{lines}")
