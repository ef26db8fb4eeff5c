"""Kueue in the cluster, from its Go module and the kustomization that it ships."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import images
from e2e.cluster.binaries import KUEUE, build, source
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout
from e2e.kubectl import kubectl
from e2e.kustomized import applied
from e2e.polling import poll

_NAMESPACE = "kueue-system"
_MODULE = "sigs.k8s.io/kueue"
_FLAVOR = '{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "any"}}'
# As its manifests name the image, and what is started in it.
_IMAGE, _PATH = "us-central1-docker.pkg.dev/k8s-staging-images/kueue/kueue:main", "/manager"


@contextmanager
def installed(kubeconfig: Path, layout: Layout) -> Iterator[None]:
    """With the integrations that it has by default, `pod` and `statefulset` among them, for the time of a `with`."""
    program = build((KUEUE,)) / KUEUE
    images.load(layout, [images.of_program(layout, _IMAGE, program, path=_PATH)])
    with applied(kubeconfig, source("kueue", _MODULE) / "config" / "default", _NAMESPACE):
        poll("its webhooks answer, which they do after the pod is ready", lambda: _answers(kubeconfig), 120)
        yield


def _answers(kubeconfig: Path) -> bool:
    try:
        kubectl(kubeconfig, "apply", "--dry-run=server", "-f", "-", stdin=_FLAVOR)
    except ClusterError as error:
        if "failed calling webhook" not in str(error):
            raise
        return False
    return True
