"""The cluster that the tests run against: KUBECONFIG, or the one that `make cluster-up` made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, config

from e2e.cluster.layout import default_layout
from e2e.cluster.processes import run

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """Skips visibly where there is no cluster."""
    found = Path(os.environ.get("KUBECONFIG") or default_layout().kubeconfig)
    if not found.exists():
        pytest.skip(f"no cluster: {found} does not exist; run `make cluster-up`, or set KUBECONFIG")
    return found


@pytest.fixture(scope="session")
def api(kubeconfig: Path) -> Iterator[client.ApiClient]:
    """A client with all rights; the CRDs are there."""
    with config.new_client_from_config(str(kubeconfig)) as made:
        crds = [str(file) for file in sorted((REPOSITORY / "crds").glob("*.yaml"))]
        kubectl(kubeconfig, "apply", "--server-side", *(word for file in crds for word in ("-f", file)))
        kubectl(
            kubeconfig, "wait", "--for=condition=Established", "--timeout=30s", *(w for f in crds for w in ("-f", f))
        )
        yield made


def kubectl(kubeconfig: Path, *words: str, stdin: str | None = None) -> str:
    """Run kubectl as the user. Raises ClusterError with what it said."""
    return run(_binary("kubectl"), f"--kubeconfig={kubeconfig}", *words, stdin=stdin)


def helm(kubeconfig: Path, *words: str) -> str:
    """Run helm as the user. Raises ClusterError with what it said."""
    return run(_binary("helm"), f"--kubeconfig={kubeconfig}", *words)


def _binary(name: str) -> str:
    built = default_layout().binaries / name
    return str(built) if built.exists() else name
