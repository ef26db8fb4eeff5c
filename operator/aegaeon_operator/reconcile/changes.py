"""Changes of manifests that need a restart of running pods; models and tenants change without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aegaeon_operator.reconcile.pods import DesiredPod, Json, PodRole

_LIVE = {PodRole.SCHEDULER: {"models"}}  # keys that the process receives over gRPC; the file is read at its next start


def needs_restart(running: Mapping[str, Json], desired: Sequence[DesiredPod]) -> list[str]:
    """Return a sentence for each change that needs a restart. `running`: configuration by name of the pod."""
    names = {pod.name for pod in desired}
    problems = [f"pod {name} is running and no longer in the manifests" for name in running if name not in names]
    for pod in desired:
        if pod.name not in running:
            problems.append(f"pod {pod.name} is in the manifests and not running")
            continue
        live = _LIVE.get(pod.role, set())
        problems += [
            f"pod {pod.name}: {key} would change from {before} to {after}"
            for key, before, after in _differences(running[pod.name], pod.config)
            if key not in live
        ]
    return problems


def _differences(running: Json, desired: Json, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    for key in sorted(running.keys() | desired.keys()):
        before, after = running.get(key), desired.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield prefix + key, before, after
