"""The cluster that the tests run against (KUBECONFIG, or the one that `make cluster-up` made), and a pool on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from kubernetes import client, config

from e2e.cluster import product
from e2e.cluster.layout import Layout, default_layout
from e2e.installation import SYSTEM, with_redis
from e2e.kubectl import REPOSITORY, define, filenames, in_namespace, kubectl
from e2e.manifests import BLUE, GREEN, RED, gpu_pool, keys, model_pool
from e2e.pool import PodsOfPool, a_pool

# What begins with an empty cluster.
_FIRST = ("test_first_model.py", "test_install.py")
# What stays until the end of the run once a test has asked for it: an operator that watches every namespace and a
# policy that protects every GpuPool; a pool on both nodes.
_LASTING = ("release", "pool")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files come in the order in which none finds more than it expects: on an empty cluster, without an installation,
    without others' pool on the nodes, beside all of that."""
    asked: dict[Path, set[str]] = {}
    for item in items:
        asked.setdefault(item.path, set()).update(getattr(item, "fixturenames", ()))

    def place(item: pytest.Item) -> int:
        if item.path.name in _FIRST:
            return _FIRST.index(item.path.name)
        return len(_FIRST) + sum(name in asked[item.path] for name in _LASTING)

    items.sort(key=place)


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
    with config.new_client_from_config(str(kubeconfig)) as made:
        crds = sorted((REPOSITORY / "crds").glob("*.yaml"))
        define(kubeconfig, crds)  # a chart may have brought them
        kubectl(kubeconfig, "wait", "--for=condition=Established", "--timeout=240s", *filenames(crds))
        yield made


@pytest.fixture(scope="session")
def deleted(kubeconfig: Path) -> Iterator[list[str]]:
    """Namespaces that tests have deleted and do not wait for: Kubernetes takes five seconds before it begins. Each must
    be gone within a minute, whatever is in it."""
    names: list[str] = []
    yield names
    if names:
        targets = [f"namespace/{name}" for name in names]
        kubectl(kubeconfig, "wait", "--for=delete", "--timeout=240s", *targets)


@pytest.fixture
def namespaced(api: client.ApiClient, kubeconfig: Path, deleted: list[str], tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig whose namespace is new. An operator of `operating` works there; no pod runs."""
    name = f"operator-test-{uuid4().hex[:8]}"
    own = in_namespace(kubeconfig, name, tmp_path)
    kubectl(own, "create", "namespace", name)
    try:
        kubectl(own, "create", "quota", "nothing-runs", "--hard=pods=0")
        yield own
    finally:
        deleted.append(name)
        kubectl(own, "delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="session")
def control_plane(kubeconfig: Path) -> Layout:
    """The cluster of `make cluster-up`, whose parts run on this machine. Skips visibly where it is another one: a test
    starts further parts beside it (a scheduler of pods, an API service), with keys that another does not give.
    """
    layout = default_layout()
    if kubeconfig != layout.kubeconfig:
        pytest.skip("needs a cluster of `make cluster-up`: further parts of a control plane are started beside its own")
    return layout


@pytest.fixture(scope="session")
def nodes(control_plane: Layout) -> Layout:
    """The same with nodes."""
    if not control_plane.nodes:
        pytest.skip("needs a cluster of `make cluster-up` with nodes: models and images are put on them")
    return control_plane


@pytest.fixture(scope="session")
def models(nodes: Layout) -> Path:
    """The tiny models. Every node has them, too, and our images, as after `make cluster-up IMAGES=1`."""
    return product.load(nodes)


@pytest.fixture(scope="session")
def own_cluster(kubeconfig: Path, models: Path) -> Path:
    """A cluster whose nodes have our images and models."""
    return kubeconfig


@pytest.fixture(scope="session")
def release(own_cluster: Path) -> Iterator[str]:
    """The chart with a Redis, installed as a person would. Yields its namespace."""
    with with_redis(own_cluster):
        yield SYSTEM


@pytest.fixture(scope="session")
def pool(release: str, own_cluster: Path, models: Path) -> Iterator[PodsOfPool]:
    """Two engines and two gateways; llama and qwen2 of tenant red, mistral of tenant blue."""
    with a_pool(own_cluster, "aegaeon-demo", gpu_pool(engines={"replicas": 2})) as made:
        made.apply(keys("red", RED), keys("blue", BLUE), keys("green", GREEN))
        made.apply(model_pool("red", ["llama", "qwen2"]), model_pool("blue", ["mistral"], guest="green"))
        made.wait_until_ready()
        yield made
