"""What other manifests would change in pods that run: models and tenants change while they serve, the rest does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aegaeon_operator.reconcile.pods import DesiredPod, Json, PodRole

_LIVE = {PodRole.SCHEDULER: {"models"}}  # keys that the process receives over gRPC, and that matter to its next life


def needs_restart(running: Mapping[str, Json], wanted: Sequence[DesiredPod]) -> list[str]:
    """A sentence for everything that only a restart can change. `running`: configuration files by name of the pod."""
    names = {pod.name for pod in wanted}
    problems = [f"pod {name} runs and is not wanted any more" for name in running if name not in names]
    for pod in wanted:
        if pod.name not in running:
            problems.append(f"pod {pod.name} is wanted and does not run")
            continue
        live = _LIVE.get(pod.role, set())
        problems += [
            f"pod {pod.name}: {key} is {before} and would be {after}"
            for key, before, after in _differences(running[pod.name], pod.config)
            if key not in live
        ]
    return problems


def _differences(one: Json, other: Json, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    for key in sorted(one.keys() | other.keys()):
        before, after = one.get(key), other.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield prefix + key, before, after
