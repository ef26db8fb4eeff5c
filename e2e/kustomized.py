"""Another project's controllers from the kustomization that its module ships, with images that nodes have already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.kubectl import kubectl


@contextmanager
def applied(kubeconfig: Path, folder: Path, namespace: str) -> Iterator[None]:
    """All deployments of its namespace are ready, for the time of a `with`."""
    manifests = kubectl(kubeconfig, "kustomize", str(folder)).replace(
        "imagePullPolicy: Always", "imagePullPolicy: Never"
    )
    try:
        kubectl(kubeconfig, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=manifests)
        kubectl(kubeconfig, "-n", namespace, "rollout", "status", "deployment", "--timeout=240s")
        yield
    finally:
        # A busy API server takes minutes to finalize a definition, and nothing that follows uses these.
        kubectl(kubeconfig, "delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=manifests)
        kubectl(kubeconfig, "wait", "--for=delete", f"namespace/{namespace}", "--timeout=180s")
