"""kubectl and helm as a person runs them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.layout import default_layout
from e2e.cluster.processes import run

REPOSITORY = Path(__file__).parents[1]
CHART = str(REPOSITORY / "helm" / "aegaeon")


def kubectl(kubeconfig: Path, *words: str, stdin: str | None = None) -> str:
    """Run kubectl. Raises ClusterError with what it said."""
    return run(binary("kubectl"), f"--kubeconfig={kubeconfig}", *words, stdin=stdin)


def filenames(files: Iterable[Path]) -> list[str]:
    """The arguments of kubectl for manifests."""
    return [f"--filename={file}" for file in files]


def define(kubeconfig: Path, files: Iterable[Path]) -> None:
    """Apply CRDs, replacing those of any field manager. Raises ClusterError."""
    kubectl(kubeconfig, "apply", "--server-side", "--force-conflicts", *filenames(files))


def helm(kubeconfig: Path, *words: str) -> str:
    """Run helm. Raises ClusterError with what it said."""
    return run(binary("helm"), f"--kubeconfig={kubeconfig}", *words)


def binary(name: str) -> str:
    """The one that belongs to the cluster, else whichever there is."""
    built = default_layout().binaries / name
    return str(built) if built.exists() else name
