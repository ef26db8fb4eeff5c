"""kubectl and helm as a person runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.layout import default_layout
from e2e.cluster.processes import run

REPOSITORY = Path(__file__).parents[1]
CHART = str(REPOSITORY / "helm" / "aegaeon")


def kubectl(kubeconfig: Path, *words: str, stdin: str | None = None) -> str:
    """Run kubectl. Raises ClusterError with what it said."""
    return run(binary("kubectl"), f"--kubeconfig={kubeconfig}", *words, stdin=stdin)


def kubectl_aegaeon(kubeconfig: Path, *words: str) -> subprocess.Popen[str]:
    """`kubectl aegaeon` of a person whose PATH has the plugin."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig)}
    pipe = subprocess.PIPE
    argv = [binary("kubectl"), "aegaeon", *words]
    return subprocess.Popen(argv, env=env, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")


def filenames(files: Iterable[Path]) -> list[str]:
    """The arguments of kubectl for manifests."""
    return [f"--filename={file}" for file in files]


def define(kubeconfig: Path, files: Iterable[Path]) -> None:
    """Apply CRDs, replacing those of any field manager. Raises ClusterError."""
    kubectl(kubeconfig, "apply", "--server-side", "--force-conflicts", *filenames(files))


def helm(kubeconfig: Path, *words: str) -> str:
    """Run helm. Raises ClusterError with what it said."""
    return run(binary("helm"), f"--kubeconfig={kubeconfig}", *words)


@contextmanager
def applied_template(kubeconfig: Path, name: str, *values: str) -> Iterator[None]:
    """What the chart makes of one of its templates, for the time of a `with`. `values`: options of helm."""
    rendered = helm(
        kubeconfig, "template", "release", CHART, "--kube-version=1.35.4", "-s", f"templates/{name}", *values
    )
    kubectl(kubeconfig, "apply", "-f", "-", stdin=rendered)
    try:
        yield
    finally:
        kubectl(kubeconfig, "delete", "-f", "-", stdin=rendered)


def in_namespace(kubeconfig: Path, namespace: str, folder: Path) -> Path:
    """A copy in the folder whose context has this namespace."""
    own = folder / "kubeconfig"
    shutil.copy(kubeconfig, own)
    kubectl(own, "config", "set-context", "--current", f"--namespace={namespace}")
    return own


def binary(name: str) -> str:
    """The one that belongs to the cluster, else whichever there is."""
    built = default_layout().binaries / name
    return str(built) if built.exists() else name
