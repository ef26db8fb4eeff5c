"""A GpuPool that serves models is protected from deletion: the chart's policy, asked of a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError
from e2e.kubectl import applied_template, kubectl
from e2e.operating import apply, models, namespace_of, objects, operator, pool
from e2e.polling import poll

ALLOW = "serving.aegaeon.io/allow-deletion"
WATCHED = "deletion-watched"
DEMO = ("delete", "gpupool", "demo")
POLICY = "protection.yaml"
pytestmark = pytest.mark.cluster


@pytest.fixture
def protected(namespaced: Path) -> Iterator[Path]:
    """With the policy of the chart as it comes, in force."""
    with applied_template(namespaced, POLICY):
        serving(namespaced, models=1)
        poll("the policy is in force", lambda: refusal(namespaced, *DEMO, "--dry-run=server"), 90)
        yield namespaced


def serving(kubeconfig: Path, models: int, *words: str) -> None:
    """A GpuPool whose status says so; no operator is there to say otherwise. `words`: of every kubectl."""
    kubectl(kubeconfig, *words, "apply", "--server-side", "-f", "-", stdin=json.dumps(pool("demo")))
    status = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": {"models": models}}))
    kubectl(kubeconfig, *words, "patch", "gpupool", "demo", *status)


def refusal(kubeconfig: Path, *words: str) -> str:
    """What the API server has against it; nothing: it was done."""
    try:
        kubectl(kubeconfig, *words)
    except ClusterError as error:
        return str(error)
    return ""


def gone(kubeconfig: Path) -> bool:
    return not objects(kubeconfig, "gpupools")


def test_a_pool_that_serves_models_is_refused_until_its_model_pools_are_gone(protected: Path) -> None:
    apply(protected, models("red", "demo", "llama"))
    with operator(protected):
        poll("a model is served", lambda: objects(protected, "gpupools")[0]["status"]["models"] == 1, 60)

        said = refusal(protected, *DEMO)

        assert f"it serves 1 model: delete the ModelPools of {namespace_of(protected)}/demo first" in said
        assert f"{ALLOW}=true" in said
        assert not gone(protected)
        kubectl(protected, "delete", "modelpool", "red")
        kubectl(protected, "wait", "gpupool/demo", "--for=jsonpath={.status.models}=0")
        assert refusal(protected, *DEMO) == ""
    assert gone(protected)


def test_replacing_it_by_force_is_a_deletion_too(protected: Path) -> None:
    with pytest.raises(ClusterError, match="it serves 1 model"):
        kubectl(protected, "replace", "--force", "-f", "-", stdin=json.dumps(pool("demo")))


def test_the_annotation_of_the_refusal_lets_it_be_deleted(protected: Path) -> None:
    kubectl(protected, "annotate", "gpupool", "demo", f"{ALLOW}=true")

    assert refusal(protected, *DEMO) == ""
    assert gone(protected)


@pytest.mark.parametrize("value", ["", "false", "yes"])
def test_another_value_of_the_annotation_does_not(protected: Path, value: str) -> None:
    kubectl(protected, "annotate", "gpupool", "demo", f"{ALLOW}={value}")

    assert "it serves 1 model" in refusal(protected, *DEMO)


def test_one_that_serves_nothing_is_deleted_like_any_object(protected: Path) -> None:
    serving(protected, models=0)

    assert refusal(protected, *DEMO) == ""
    apply(protected, pool("demo"))  # it has no status yet
    assert refusal(protected, *DEMO) == ""


def test_a_namespace_that_is_deleted_takes_it_along(protected: Path) -> None:
    kubectl(protected, "delete", "namespace", namespace_of(protected), "--timeout=240s")

    assert gone(protected)


def test_deletion_is_not_refused_in_namespaces_that_the_operator_does_not_watch(namespaced: Path) -> None:
    kubectl(namespaced, "create", "namespace", WATCHED)
    try:
        serving(namespaced, 1, "-n", WATCHED)
        serving(namespaced, models=1)
        with applied_template(namespaced, POLICY, "--set", f"operator.watchNamespaces={{{WATCHED}}}"):
            asked = (*DEMO, "--dry-run=server")

            def refused() -> list[bool]:
                return [bool(refusal(namespaced, *where, *asked)) for where in (("-n", WATCHED), ())]

            # The policy of the test before, of the same name, is forgotten some time after it was deleted.
            poll("there, and not here", lambda: refused() == [True, False], 90)
    finally:
        kubectl(namespaced, "delete", "namespace", WATCHED, "--timeout=240s")
