"""Starts pods in the order of their dependencies, keeps them running, and stops them in the order of draining."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from aegaeon_operator.errors import RunnerError
from aegaeon_operator.podrunner.child import Child, Reporter, RestartPolicy
from aegaeon_operator.podrunner.probe import ready
from aegaeon_operator.podrunner.runfolder import RunFolder
from aegaeon_operator.podrunner.start_timeout import StartTimeout
from aegaeon_operator.reconcile import DesiredPod, PodRole

_PROBE_INTERVAL_S = 0.1


class PodRunner:
    """The owner of a run's child processes; use it in the event loop of the main thread."""

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
        """Process ids of the running pods."""
        return {name: child.pid for name, child in self._children.items() if child.pid is not None}

    async def start(self) -> None:
        """Start every pod except those on demand; return when they are ready.

        Raises RunnerError; call `drain` afterwards in any case.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for child in self._children.values():
                    _write(child.pod)
                    if not child.pod.on_demand:
                        group.create_task(self._bring_up(child))
        except ExceptionGroup as failed:  # not except*, which wraps a raised error in a group before Python 3.11.4
            expected, unexpected = failed.split(RunnerError)
            if expected is None or unexpected is not None:
                raise
            raise expected.exceptions[0] from None

    def begin(self, name: str) -> None:
        """Start a pod and keep it running; does not wait for its readiness."""
        if not self._children[name].started:
            self._children[name].start()

    async def end(self, name: str) -> None:
        """Stop a pod with its grace period; it may be started again."""
        child = self._children[name]
        await child.stop()
        self._children[name] = self._child(child.pod)

    async def drain(self) -> None:
        """Stop gateways, then sidecars, then schedulers; wait for the end of each group."""
        for role in PodRole:
            wave = [child for child in self._children.values() if child.pod.role is role]
            await asyncio.gather(*(child.stop() for child in wave))

    def kill(self) -> None:
        """Kill all pods at once, without draining; `drain` must still be awaited."""
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
        """Wait for a pod as long as it computes: on a busy machine the import of vLLM may take minutes."""
        timeout = StartTimeout(
            self._policy.start_timeout_s, self._policy.progress_every_s, asyncio.get_running_loop().time
        )
        while not await ready(child.pod.probe):
            if child.misconfigured:
                raise _failed(child, "refused its configuration")
            if not timeout.lasts(child.computed_s):
                raise _failed(child, f"is idle and was not ready within {self._policy.start_timeout_s:g} s")
            if timeout.is_to_report():
                last_line = child.last_lines[-1] if child.last_lines else "no output yet"
                self._reporter.event(child.pod.name, f"not ready after {timeout.waited_s:.0f} s: {last_line}")
            if child.deaths >= self._policy.early_deaths:
                raise _failed(child, f"exited {child.deaths} times before it was ready")
            await asyncio.sleep(_PROBE_INTERVAL_S)


def _write(pod: DesiredPod) -> None:
    for file, content in {**pod.files, pod.config_file: pod.config}.items():
        file.write_text(json.dumps(content, indent=2), "utf-8")


def _failed(child: Child, problem: str) -> RunnerError:
    lines = "\n".join(f"  {line}" for line in child.last_lines)
    return RunnerError(f"pod {child.pod.name} {problem}; its last lines:\n{lines}")
