"""The chart's admission policy, asked of a real API server: what `aegaeon up` refuses it refuses, all in one answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aegaeon_operator.errors import ManifestError
from aegaeon_operator.spec.load import load_manifests
from e2e.cluster.errors import ClusterError
from e2e.kubectl import applied_template, kubectl
from e2e.operating import API, MEMORY, apply, models, namespace_of, objects, operator, pool
from e2e.polling import poll

Json = dict[str, Any]
HUB = {"huggingFace": {"repository": "org/model"}}
BUCKET = {"s3": {"bucket": "models"}}
PLATFORM = "admission-platform"
POLICY = "admission.yaml"
pytestmark = pytest.mark.cluster


@pytest.fixture
def guarded(namespaced: Path) -> Iterator[Path]:
    """With the policy in force, and a GpuPool without disk, adapters and folder of models."""
    with applied_template(namespaced, POLICY):
        apply(namespaced, pool("demo", volumes={}))
        poll("the policy is in force", lambda: refusal(namespaced, model_pool(served("a", BUCKET))), 60)
        yield namespaced


def served(name: str, source: Json, *adapters: Json) -> Json:
    return {"name": name, "source": source, "adapters": list(adapters)}


def model_pool(*of: Json, name: str = "red", **spec: Any) -> Json:
    whole = {"gpuPoolRef": {"name": "demo"}, "models": list(of), **spec}
    return {"apiVersion": API, "kind": "ModelPool", "metadata": {"name": name}, "spec": whole}


def tenant(name: str, *grants: str) -> Json:
    return {"name": name, "keySecretRef": {"name": "keys", "key": name}, "models": list(grants)}


def refusal(kubeconfig: Path, *manifests: Json, dry: bool = True) -> str:
    """What the API server has against them; nothing: they were taken."""
    words = ["apply", "--server-side", *(["--dry-run=server"] if dry else []), "-f", "-"]
    try:
        kubectl(kubeconfig, *words, stdin="\n---\n".join(map(json.dumps, manifests)))
    except ClusterError as error:
        return str(error)
    return ""


def locally(folder: Path, *manifests: Json) -> list[str]:
    """The sentences of `aegaeon up` on the same."""
    (folder / "all.yaml").write_text(yaml.safe_dump_all(manifests), "utf-8")
    try:
        load_manifests(folder, folder)
    except ManifestError as error:
        return list(error.problems)
    return []


POET = {"name": "poet", "source": HUB}
# Models and tenants, and words of the finding.
FINDINGS: dict[str, tuple[Json, tuple[str, ...]]] = {
    "disk": (model_pool(served("a", BUCKET)), ("needs a disk tier", "has no spec.memory.disk")),
    "disk of a web server": (model_pool(served("a", {"http": {"url": "http://a/b"}})), ("needs a disk tier",)),
    "disk of an adapter": (model_pool(served("a", HUB, {**POET, "source": BUCKET})), ("needs a disk tier",)),
    "adapters": (model_pool(served("a", HUB, POET)), ("adapters", "has no spec.adapters (backend vllm)")),
    "a name twice": (model_pool(served("a", HUB), served("b", HUB, {**POET, "name": "a"})), ("rename one of them",)),
    "adapters twice": (model_pool(served("a", HUB, POET), served("b", HUB, POET)), ("rename one of them",)),
    "grants": (
        model_pool(served("a", HUB), tenants=[tenant("acme", "a", "lama")]),
        ("acme", "names 'lama', which is not a model or adapter"),
    ),
}


@pytest.mark.parametrize("finding", FINDINGS)
def test_what_aegaeon_up_refuses_the_policy_refuses(guarded: Path, tmp_path: Path, finding: str) -> None:
    manifest, words = FINDINGS[finding]
    here, there = "\n".join(locally(tmp_path, pool("demo", volumes={}), manifest)), refusal(guarded, manifest)
    assert [word for word in words if word not in here or word not in there] == [], (here, there)


def test_all_findings_come_in_one_answer(guarded: Path) -> None:
    everything = model_pool(
        served("a", BUCKET, POET), served("b", {"hostPath": "b"}), served("poet", HUB), tenants=[tenant("acme", "lama")]
    )
    said = refusal(guarded, everything)
    for words in (
        "'a' needs a disk tier",
        "'a' has adapters",
        "hostPath of 'b' is not inside volumes.models.path",
        "an adapter of 'a' has the name of another",
        "'acme' names 'lama'",
    ):
        assert words in said
    assert "Invalid value" not in said


def test_what_fits_is_taken(guarded: Path) -> None:
    disk = MEMORY | {"disk": {"path": "/cache"}}
    room = {"backend": "vllm", "adapters": {"memory": "1Mi"}, "volumes": {"models": {"path": "/srv/models"}}}
    apply(guarded, pool("demo", memory=disk, **room))
    fits = model_pool(
        served("a", BUCKET, POET),
        served("b", {"hostPath": "b"}),
        served("c", {"hostPath": "/srv/models/c"}),
        tenants=[tenant("acme", "a", "poet")],
    )
    poll("the policy has seen the change", lambda: not refusal(guarded, fits), 90)
    outside = model_pool(served("c", {"hostPath": "/srv/models-of-others/c"}))
    assert "is not inside volumes.models.path of GpuPool" in refusal(guarded, outside)


def test_a_model_pool_may_come_before_its_gpu_pool(guarded: Path) -> None:
    other = model_pool(served("a", BUCKET))
    other["spec"]["gpuPoolRef"] = {"name": "later"}
    assert refusal(guarded, other, dry=False) == ""


def test_one_that_does_not_fit_any_more_keeps_its_metadata_editable(guarded: Path) -> None:
    apply(guarded, pool("demo", volumes={"models": {"path": "/srv/models"}}))
    fits = model_pool(served("a", {"hostPath": "a"}))
    poll("it is taken", lambda: not refusal(guarded, fits, dry=False), 90)
    apply(guarded, pool("demo", volumes={}))
    changed = model_pool(served("a", {"hostPath": "b"}))
    poll("a change of the spec is refused", lambda: "is not inside" in refusal(guarded, changed), 90)

    kubectl(guarded, "label", "modelpool", "red", "team=red")
    kubectl(guarded, "delete", "modelpool", "red")

    assert objects(guarded, "modelpools") == []


def test_a_name_that_another_model_pool_serves_is_refused_with_its_holder(guarded: Path, tmp_path: Path) -> None:
    whole = pool("demo")
    apply(guarded, whole)
    red = models("red", "demo", "llama")
    poll("the policy has seen the pool's folder", lambda: not refusal(guarded, red, dry=False), 90)
    blue = models("blue", "demo", "llama", "qwen")
    with operator(guarded):
        conflict = f"'llama' is already served by ModelPool {namespace_of(guarded)}/red; rename one of them"
        poll("the name is held", lambda: conflict in refusal(guarded, blue), 60)
        assert refusal(guarded, models("red", "demo", "llama", "qwen")) == "", "its own names are its own"
        kubectl(guarded, "delete", "modelpool", "red")
        poll("the name is free", lambda: not refusal(guarded, blue), 60)
    assert "is already served by" in "\n".join(locally(tmp_path, whole, models("red", "demo", "llama"), blue))


def test_a_gpu_pool_of_another_namespace_is_looked_at_where_the_chart_names_it(namespaced: Path) -> None:
    kubectl(namespaced, "create", "namespace", PLATFORM)
    shared = model_pool(served("a", BUCKET))
    shared["spec"]["gpuPoolRef"] = {"name": "demo", "namespace": PLATFORM}
    in_platform = (namespaced, "-n", PLATFORM, "apply", "--server-side", "-f", "-")
    try:
        kubectl(*in_platform, stdin=json.dumps(pool("demo")))
        with applied_template(namespaced, POLICY, "--set", f"admission.gpuPoolNamespaces={{{PLATFORM}}}"):
            closed = f"GpuPool {PLATFORM}/demo does not allow namespace {namespace_of(namespaced)}; add it to its"
            poll("it is refused", lambda: closed in refusal(namespaced, shared), 60)
            assert "needs a disk tier" in refusal(namespaced, shared), "with all else"
            kubectl(*in_platform, stdin=json.dumps(pool("demo", allowedNamespaces=["*"])))
            poll("it is allowed", lambda: closed not in refusal(namespaced, shared), 90)
            assert "needs a disk tier" in refusal(namespaced, shared)
    finally:
        kubectl(namespaced, "delete", "namespace", PLATFORM, "--timeout=240s")


def test_it_can_warn_instead(namespaced: Path) -> None:
    with applied_template(namespaced, POLICY, "--set", "admission.action=Warn"):
        apply(namespaced, pool("demo"))
        bad = model_pool(served("a", BUCKET))

        def warns() -> bool:
            warned = kubectl_says(namespaced, bad)
            assert warned is not None
            return "needs a disk tier" in warned

        poll("it warns, and takes it", warns, 60)


def kubectl_says(kubeconfig: Path, manifest: Json) -> str | None:
    """All that kubectl prints, warnings too; None: it was refused. As errors, since warnings go to stderr."""
    try:
        kubectl(kubeconfig, "create", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=json.dumps(manifest))
    except ClusterError as error:
        text = str(error)
        return None if "denied the request" in text or "is invalid" in text else text
    return ""


def test_its_expressions_fit_the_types_of_both_kinds(guarded: Path) -> None:
    (found,) = (
        one
        for one in objects(guarded, "validatingadmissionpolicies")
        if one["metadata"]["name"].endswith("-model-pools")
    )
    poll("it was type-checked", lambda: "typeChecking" in objects_of(guarded, found).get("status", {}), 90)
    assert objects_of(guarded, found)["status"]["typeChecking"] == {}


def objects_of(kubeconfig: Path, known: Json) -> Json:
    name = known["metadata"]["name"]
    found: Json = json.loads(kubectl(kubeconfig, "get", "validatingadmissionpolicies", name, "-o", "json"))
    return found


def test_the_largest_model_pool_costs_no_more_than_the_api_server_allows(guarded: Path) -> None:
    apply(guarded, pool("demo"))
    names = [f"model-{number}" for number in range(512)]
    large = model_pool(*(served(name, {"hostPath": name}) for name in names))
    large["spec"]["tenants"] = [tenant(f"tenant-{number}", *names) for number in range(64)]
    poll("it is taken", lambda: not refusal(guarded, large), 60)
    large["spec"]["models"][0]["source"] = BUCKET
    assert "'model-0' needs a disk tier" in refusal(guarded, large)
