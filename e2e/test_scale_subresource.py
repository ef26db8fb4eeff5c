"""What `kubectl scale` does to a GpuPool: it changes the engines that do both, or is refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.errors import ClusterError
from e2e.kubectl import kubectl
from e2e.operating import apply, models, objects, operator, pool
from e2e.polling import poll

pytestmark = pytest.mark.cluster
SPLIT = {"engines": None, "prefill": {"replicas": 1}, "decode": {"replicas": 2}}


def scale(kubeconfig: Path, count: int) -> None:
    kubectl(kubeconfig, "scale", "gpool", "demo", f"--replicas={count}")


def patch(kubeconfig: Path, spec: dict[str, Any]) -> None:
    change = json.dumps({"spec": spec})
    kubectl(kubeconfig, "patch", "gpool", "demo", "--type=merge", "-p", change)


def spec_of(kubeconfig: Path) -> dict[str, Any]:
    (found,) = objects(kubeconfig, "gpupools")
    spec: dict[str, Any] = found["spec"]
    return spec


def given(**spec: Any) -> dict[str, Any]:
    made = pool("demo")
    made["spec"] = {name: value for name, value in {**made["spec"], **spec}.items() if value is not None}
    return made


def test_engines_are_scaled(namespaced: Path) -> None:
    apply(namespaced, given(engines={"replicas": 1}))
    scale(namespaced, 3)
    assert spec_of(namespaced)["engines"] == {"replicas": 3}
    scale(namespaced, 0)
    assert spec_of(namespaced)["engines"] == {"replicas": 0}


def test_a_pool_of_two_roles_is_refused_scaling_with_the_remedy(namespaced: Path) -> None:
    apply(namespaced, given(**SPLIT))
    with pytest.raises(ClusterError, match=r"change prefill\.replicas or decode\.replicas with kubectl patch"):
        scale(namespaced, 3)
    assert "engines" not in spec_of(namespaced)
    patch(namespaced, {"decode": {"replicas": 4}})
    assert spec_of(namespaced)["decode"] == {"replicas": 4}


def test_of_a_pool_with_all_three_kinds_those_that_do_both_are_scaled(namespaced: Path) -> None:
    apply(namespaced, given(**SPLIT | {"engines": {"replicas": 1}}))
    scale(namespaced, 3)
    spec = spec_of(namespaced)
    assert (spec["engines"], spec["decode"]) == ({"replicas": 3}, SPLIT["decode"])


def test_a_pool_may_be_given_the_other_kind_of_engines_as_a_whole(namespaced: Path) -> None:
    apply(namespaced, given(**SPLIT))
    patch(namespaced, {"prefill": None, "decode": None, "engines": {"replicas": 2}})
    scale(namespaced, 1)
    patch(namespaced, SPLIT)
    assert "engines" not in spec_of(namespaced)


def test_a_pool_that_autoscales_is_refused_scaling_with_the_remedy(namespaced: Path) -> None:
    apply(namespaced, given(engines={"replicas": 1, "min": 0, "max": 2}))
    with pytest.raises(ClusterError, match="change min or max, or remove both"):
        scale(namespaced, 2)
    patch(namespaced, {"engines": {"min": 1, "max": 4}})
    patch(namespaced, {"engines": {"min": None, "max": None, "replicas": 3}})
    assert spec_of(namespaced)["engines"] == {"replicas": 3}


def test_a_pool_that_begins_without_engines_has_a_statefulset_of_none_and_says_so(namespaced: Path) -> None:
    apply(namespaced, given(engines={"replicas": 0, "min": 0, "max": 2}), models("red", "demo", "llama"))

    def engines() -> int | None:
        found = [one for one in objects(namespaced, "statefulsets") if one["metadata"]["name"] == "demo-engine"]
        return int(found[0]["spec"]["replicas"]) if found else None

    def condition() -> str:
        (found,) = objects(namespaced, "gpupools")
        said = (one["status"] for one in found.get("status", {}).get("conditions", ()) if one["type"] == "EnginesReady")
        return str(next(said, ""))

    with operator(namespaced):
        poll("a StatefulSet", lambda: engines() is not None, 60)
        poll("nothing is missing", lambda: condition() == "True", 60)
        assert engines() == 0
