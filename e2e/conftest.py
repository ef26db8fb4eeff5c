"""The cluster that the tests run against (KUBECONFIG, or the one that `make cluster-up` made), and a pool on it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client, config

from aegaeon_cli.models import make_models
from e2e.cluster import images
from e2e.cluster.layout import default_layout
from e2e.kubectl import REPOSITORY, helm, kubectl
from e2e.manifests import BLUE, GREEN, NAMESPACE, POOL, RED, gpu_pool, keys, model_pool
from e2e.pool import PodsOfPool

_SYSTEM = "aegaeon-system"


@pytest.fixture(scope="session")
def kubeconfig() -> Path:
    """Fails where there is none: tests that ran nowhere must not look as if they had passed."""
    found = Path(os.environ.get("KUBECONFIG") or default_layout().kubeconfig)
    if not found.exists():
        pytest.fail(f"no cluster: {found} does not exist; run `make cluster-up`, or set KUBECONFIG")
    return found


@pytest.fixture(scope="session")
def api(kubeconfig: Path) -> Iterator[client.ApiClient]:
    """A client with all rights; the CRDs are there."""
    with config.new_client_from_config(str(kubeconfig)) as made:  # type: ignore[no-untyped-call]  # it has no types
        crds = [str(file) for file in sorted((REPOSITORY / "crds").glob("*.yaml"))]
        kubectl(kubeconfig, "apply", "--server-side", *(word for file in crds for word in ("-f", file)))
        kubectl(
            kubeconfig, "wait", "--for=condition=Established", "--timeout=30s", *(w for f in crds for w in ("-f", f))
        )
        yield made


@pytest.fixture(scope="session")
def own_cluster(kubeconfig: Path) -> Path:
    """The cluster of `make cluster-up` with nodes, and our images on them. Skips visibly where it is another one."""
    layout = default_layout()
    if kubeconfig != layout.kubeconfig or not layout.nodes:
        pytest.skip("needs a cluster of `make cluster-up` with nodes: models and images are put on them")
    images.load(layout, images.product_images(layout))
    return kubeconfig


@pytest.fixture(scope="session")
def models(own_cluster: Path) -> Path:
    """The tiny models where pods may read them."""
    folder = default_layout().root / "models"
    made = default_layout().binaries.parents[1] / "models"
    make_models(made, print)
    shutil.copytree(made, folder, dirs_exist_ok=True)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture(scope="session")
def release(own_cluster: Path) -> Iterator[str]:
    """The chart, installed as a person would. Yields its namespace."""
    image, _, tag = images.CONTROL.rpartition(":")
    values = {
        "images": {"control": image, "engine": images.ENGINE.rpartition(":")[0], "tag": tag, "pullPolicy": "Never"}
    }
    where = ("--namespace", _SYSTEM)
    chart = str(REPOSITORY / "helm" / "aegaeon")
    # Other tests put the definitions there before.
    install = (
        "upgrade",
        "--install",
        "aegaeon",
        chart,
        "--create-namespace",
        "--take-ownership",
        "--force-conflicts",
        "--wait",
    )
    helm(own_cluster, *install, *where, "--timeout=120s", "--set-json", f"images={json.dumps(values['images'])}")
    yield _SYSTEM
    helm(own_cluster, "uninstall", "aegaeon", *where, "--wait")


@pytest.fixture(scope="session")
def pool(release: str, own_cluster: Path, models: Path) -> Iterator[PodsOfPool]:
    """Two engines and two gateways; llama and qwen2 of tenant red, mistral of tenant blue."""
    made = PodsOfPool(own_cluster, NAMESPACE, POOL)
    kubectl(own_cluster, "create", "namespace", NAMESPACE)
    made.apply(keys("red", RED), keys("blue", BLUE), keys("green", GREEN), gpu_pool(models))
    made.apply(model_pool("red", ["llama", "qwen2"]), model_pool("blue", ["mistral"], guest="green"))
    made.kubectl("wait", "--for=condition=Ready", "gpupool,modelpool", "--all", "--timeout=180s")
    yield made
    kubectl(own_cluster, "delete", "namespace", NAMESPACE, "--timeout=120s")
