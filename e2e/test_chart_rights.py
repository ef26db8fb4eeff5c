"""The operator with the rights that the chart gives it, on a real API server: enough for all it does, and no more."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from aegaeon_kube.errors import KubeError
from aegaeon_kube.lease import Leadership, LeaseSettings
from aegaeon_kube.server import connect
from e2e.cluster import definitions
from e2e.cluster.errors import ClusterError
from e2e.kubectl import REPOSITORY, define, helm, kubectl
from e2e.polling import poll

NAMESPACE, OTHER = "aegaeon-rights", "aegaeon-rights-other"
ACCOUNT = "release-operator"
RBAC = "rbac.authorization.k8s.io"
MEMORY = {"deviceBytes": "13Mi", "slabSize": "256Ki", "hostModelCache": "32Mi", "hostKv": "12Mi"}
POOL = {
    "engines": {"replicas": 1},
    "memory": MEMORY,
    "volumes": {"models": {"path": "/srv/models"}},
    "gateway": {"endpointPicker": {}},
}
MODELS = {
    "gpuPoolRef": {"name": "demo"},
    "models": [{"name": "llama", "source": {"hostPath": "llama"}}],
    "tenants": [{"name": "red", "keySecretRef": {"name": "keys", "key": "keys"}}],
    "gateway": {"parentRefs": [{"name": "public"}]},
}
MADE = "deploy,sts,svc,sa,rolebinding,netpol,pdb,secret,httproute,inferencepool"
OURS = "app.kubernetes.io/managed-by=aegaeon-operator"
MODES: dict[str, dict[str, Any]] = {
    "in one namespace": {"watchNamespaces": [NAMESPACE]},
    "everywhere": {"watchNamespaces": []},
}


@pytest.fixture(scope="module")
def server(kubeconfig: Path, api: object) -> Iterator[Path]:
    """With the kinds of Gateways, and two namespaces."""
    for of in (definitions.GATEWAY_API, definitions.INFERENCE_POOL):
        define(kubeconfig, definitions.files(of))
    for name in (NAMESPACE, OTHER):
        kubectl(kubeconfig, "create", "namespace", name)
    yield kubeconfig
    kubectl(kubeconfig, "delete", "namespace", NAMESPACE, OTHER, "--timeout=240s")


@pytest.fixture(params=MODES)
def account(server: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A kubeconfig of the operator's service account, with the rights that the chart renders in each mode."""
    values = json.dumps(MODES[request.param])
    rendered = helm(
        server,
        *("template", "release", str(REPOSITORY / "helm" / "aegaeon"), "--kube-version=1.35.4", "-n", NAMESPACE),
        *("--set-json", f"operator={values}"),
    )
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    rights = yaml.safe_dump_all(one for one in yaml.safe_load_all(rendered) if one and one["kind"] in kinds)
    kubectl(server, "apply", "-n", NAMESPACE, "-f", "-", stdin=rights)
    yield _as(server, ACCOUNT, tmp_path)
    kubectl(server, "delete", "-n", NAMESPACE, "-f", "-", stdin=rights)


def _as(server: Path, account: str, folder: Path) -> Path:
    token = kubectl(server, "-n", NAMESPACE, "create", "token", account, "--duration=1h").strip()
    config = json.loads(kubectl(server, "config", "view", "--raw", "--flatten", "-o", "json"))
    for user in config["users"]:
        user["user"] = {"token": token}
    file = folder / f"{account}.json"
    file.write_text(json.dumps(config), "utf-8")
    return file


@contextmanager
def operator(account: Path, said: Path) -> Iterator[None]:
    """One process with that account and no other; what it says is kept."""
    env = {
        **os.environ,
        "KUBECONFIG": str(account),
        "AEGAEON_NAMESPACES": NAMESPACE,  # its rights may be everywhere: what else is in the cluster is not ours
        "AEGAEON_PICKER_ROLE": _role(account, "picker"),
        "AEGAEON_SCHEDULER_ROLE": _role(account, "scheduler"),
        "AEGAEON_HEALTH_PORT": "0",
        "AEGAEON_METRICS_PORT": "0",
        "POD_NAME": "rights",
        "POD_NAMESPACE": NAMESPACE,
    }
    with said.open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "aegaeon_operator"], env=env, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def _role(account: Path, of: str) -> str:
    """Whichever of the two the chart has made: the account may give it, which only that one allows."""
    everywhere = f"{ACCOUNT}-{NAMESPACE}-{of}"
    given = _may(account, "bind", f"clusterroles.{RBAC}/{everywhere}")
    return f"ClusterRole/{everywhere}" if given else f"Role/{ACCOUNT}-{of}"


def _may(account: Path, verb: str, what: str, namespace: str = NAMESPACE) -> bool:
    """`what`: resource[:subresource][.group][/name]."""
    kind, _, name = what.partition("/")
    path, _, group = kind.partition(".")
    resource, _, subresource = path.partition(":")
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
    spec = {"resourceAttributes": {**asked, "name": name, "subresource": subresource}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
    answer = kubectl(account, "create", "--validate=false", "-f", "-", "-o", "json", stdin=json.dumps(review))
    return bool(json.loads(answer)["status"]["allowed"])


def _apply(server: Path, kind: str, name: str, spec: dict[str, Any]) -> None:
    body = {"apiVersion": "serving.aegaeon.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    kubectl(server, "-n", NAMESPACE, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(body))


def test_with_its_rights_it_makes_changes_and_removes_all_that_a_pool_can_have(
    server: Path, account: Path, tmp_path: Path
) -> None:
    def made() -> set[str]:
        return set(kubectl(server, "-n", NAMESPACE, "get", MADE, "-l", OURS, "-o", "name").split())

    def accepted() -> bool:
        found = json.loads(kubectl(server, "-n", NAMESPACE, "get", "gpool,mpool", "-o", "json"))["items"]
        said = [one.get("status", {}).get("conditions", ()) for one in found]
        return [any((c["type"], c["status"]) == ("Accepted", "True") for c in one) for one in said] == [True, True]

    kubectl(server, "-n", NAMESPACE, "create", "secret", "generic", "keys", "--from-literal=keys=sk-test")
    _apply(server, "GpuPool", "demo", POOL)
    _apply(server, "ModelPool", "red", MODELS)
    with operator(account, tmp_path / "said"):
        poll("both are accepted", accepted, 60)
        kinds = {name.partition("/")[0].partition(".")[0] for name in made()}
        assert kinds == {
            *("deployment", "statefulset", "service", "serviceaccount", "rolebinding", "networkpolicy"),
            *("poddisruptionbudget", "secret", "httproute", "inferencepool"),
        }
        _apply(server, "GpuPool", "demo", {**POOL, "gateway": {}})
        poll("the picker is gone", lambda: not [one for one in made() if "picker" in one or "inference" in one], 60)
        assert kubectl(server, "-n", NAMESPACE, "get", "events", "-o", "name")
        kubectl(server, "-n", NAMESPACE, "delete", "mpool,gpool", "--all")
        poll("the rest is gone", lambda: not made(), 60)
    kubectl(server, "-n", NAMESPACE, "delete", "secret", "keys")
    said = (tmp_path / "said").read_text("utf-8")
    assert "orbidden" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("account", ["in one namespace"], indirect=True)
@pytest.mark.parametrize(
    ("verb", "what", "namespace"),
    [
        ("get", "secrets", OTHER),
        ("get", "pods", NAMESPACE),
        ("create", "pods:exec", NAMESPACE),
        ("create", f"roles.{RBAC}", NAMESPACE),
        ("bind", f"clusterroles.{RBAC}/cluster-admin", NAMESPACE),
        ("bind", f"roles.{RBAC}/{ACCOUNT}", NAMESPACE),
        ("escalate", f"roles.{RBAC}/{ACCOUNT}", NAMESPACE),
        ("impersonate", "serviceaccounts", NAMESPACE),
        ("create", "serviceaccounts:token", NAMESPACE),
        ("list", "nodes", NAMESPACE),
        ("patch", "gpupools.serving.aegaeon.io", NAMESPACE),
    ],
)
def test_the_operator_may_not(account: Path, verb: str, what: str, namespace: str) -> None:
    assert not _may(account, verb, what, namespace)


@pytest.mark.parametrize("account", ["in one namespace"], indirect=True)
def test_it_cannot_grant_rights_that_it_does_not_have(account: Path) -> None:
    subject = f"--serviceaccount={NAMESPACE}:default"
    create = ("-n", NAMESPACE, "create", "rolebinding")
    kubectl(account, *create, "allowed", f"--role={ACCOUNT}-picker", subject)
    kubectl(account, "-n", NAMESPACE, "delete", "rolebinding", "allowed")
    with pytest.raises(ClusterError, match="forbidden"):
        kubectl(account, *create, "refused", "--clusterrole=cluster-admin", subject)


def test_a_picker_sees_pods_and_pools_of_its_namespace_and_nothing_else(
    server: Path, account: Path, tmp_path: Path
) -> None:
    kind, _, role = _role(account, "picker").partition("/")
    kubectl(server, "-n", NAMESPACE, "create", "serviceaccount", "a-picker")
    given = f"--{kind.lower()}={role}"
    subject = f"--serviceaccount={NAMESPACE}:a-picker"
    kubectl(server, "-n", NAMESPACE, "create", "rolebinding", "a-picker", given, subject)
    picker = _as(server, "a-picker", tmp_path)
    pools = "inferencepools.inference.networking.k8s.io"
    allowed = {what: _may(picker, verb, what) for verb, what in (("list", "pods"), ("watch", "pods"), ("get", pools))}
    refused = {what: _may(picker, "get", what) for what in ("secrets", "pods", "configmaps", "services")}
    elsewhere = _may(picker, "list", "pods", OTHER)  # before its account is deleted, whose token soon ends with it
    kubectl(server, "-n", NAMESPACE, "delete", "serviceaccount/a-picker", "rolebinding/a-picker")
    assert all(allowed.values()), allowed
    assert not any(refused.values()), refused
    assert not elsewhere


async def test_a_scheduler_leads_by_a_lease_of_its_namespace_and_may_do_nothing_else(
    server: Path, account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, _, role = _role(account, "scheduler").partition("/")
    kubectl(server, "-n", NAMESPACE, "create", "serviceaccount", "a-scheduler")
    given, subject = f"--{kind.lower()}={role}", f"--serviceaccount={NAMESPACE}:a-scheduler"
    kubectl(server, "-n", NAMESPACE, "create", "rolebinding", "a-scheduler", given, subject)
    scheduler = _as(server, "a-scheduler", tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(scheduler))
    try:
        async with connect() as api:
            names = ("one", "other")
            one, other = (Leadership(api, LeaseSettings(NAMESPACE, name, "a-pool", period_s=0.2)) for name in names)
            await one.acquire()
            standing_by = asyncio.create_task(other.acquire())
            await one.release()
            await asyncio.wait_for(standing_by, 60)
            assert 0 < one.term < other.term
            await asyncio.wait_for(one.replaced(), 60)
        refused = {what: _may(scheduler, "get", what) for what in ("secrets", "pods", "configmaps", "endpoints")}
        elsewhere = _may(scheduler, "get", "leases.coordination.k8s.io", OTHER)
    finally:  # its token soon ends with its account
        kubectl(server, "-n", NAMESPACE, "delete", "serviceaccount/a-scheduler", "rolebinding/a-scheduler")
        kubectl(server, "-n", NAMESPACE, "delete", "lease", "a-pool", "--ignore-not-found")
    assert not any(refused.values()), refused
    assert not elsewhere


async def test_a_pod_logs_in_with_the_token_that_kubelet_mounts(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cluster,) = json.loads(kubectl(server, "config", "view", "--raw", "--flatten", "-o", "json"))["clusters"]
    address = urlsplit(cluster["cluster"]["server"])
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(cluster["cluster"]["certificate-authority-data"]))
    kubectl(server, "-n", NAMESPACE, "create", "serviceaccount", "pod")
    (tmp_path / "token").write_text(kubectl(server, "-n", NAMESPACE, "create", "token", "pod"), "utf-8")
    monkeypatch.setattr("aegaeon_kube.server.ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(address.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(address.port))
    async with connect() as api:
        with pytest.raises(KubeError, match=f"system:serviceaccount:{NAMESPACE}:pod") as raised:
            await api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets")
    assert raised.value.status == 403
