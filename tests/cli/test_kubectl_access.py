"""`kubectl aegaeon` for people who may not do everything, with pods that do not run and kubeconfigs that lack parts."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dead_proxy
import pytest
from click.testing import CliRunner, Result
from kubectl_cluster import CUSTOM, ApiServer, api_server, pod, refused

from aegaeon_cli.kubectl.main import main

DENIED = refused(403, 'pods "s" is forbidden: User "u" cannot create resource "pods/portforward"')
LINE = "2026-11-26T04:00:0{}.5Z 2026-11-26 04:00:00,000 INFO x: llama {}\n"


@pytest.fixture
def cluster() -> Iterator[ApiServer]:
    with api_server() as known:
        yield known


def run(kubeconfig: Path, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--kubeconfig", str(kubeconfig)])


# ---- kubeconfigs ---------------------------------------------------------------------------------------------------


def test_a_cluster_of_this_machine_is_reached_without_the_proxy_of_the_environment(
    cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kubectl reaches it."""
    dead_proxy.use(monkeypatch)
    found = run(cluster.kubeconfig(tmp_path), "ps")
    assert "does not answer" not in found.output
    assert "not found" in found.output


def test_a_context_can_be_chosen_where_none_is_current(cluster: ApiServer, tmp_path: Path) -> None:
    cluster.pools()
    file = cluster.kubeconfig(tmp_path, **{"current-context": None})

    assert run(file, "ps", "--context", "here").exit_code == 0
    found = run(file, "ps")
    assert (found.exit_code, "pass --context NAME: here" in found.output) == (2, True)


@pytest.mark.parametrize("content", ["{", "", "[]", "contexts: 7"])
def test_a_kubeconfig_that_is_none_is_an_error_in_a_sentence(content: str, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(content)

    found = run(file, "ps")

    assert (found.exit_code, found.output.startswith("Error: ")) == (2, True)


# ---- rights --------------------------------------------------------------------------------------------------------


def test_who_may_not_forward_ports_learns_so_at_once(cluster: ApiServer, tmp_path: Path) -> None:
    cluster.pools("p")
    cluster.pods(pod("s", "scheduler"))
    cluster.answers["/api/v1/namespaces/n/pods/s/portforward"] = DENIED

    found = run(cluster.kubeconfig(tmp_path), "ps")

    assert found.exit_code == 1
    assert 'User "u" cannot create resource "pods/portforward"' in found.output


def test_doctor_notes_what_it_may_not_look_at_and_keeps_what_it_has_found(cluster: ApiServer, tmp_path: Path) -> None:
    has_version(cluster)
    cluster.pools("p")
    cluster.answers[CUSTOM.format(namespace="n", plural="modelpools")] = refused(403, "no ModelPools for you")
    cluster.pods(pod("s", "scheduler"))
    cluster.answers["/api/v1/namespaces/n/pods/s/portforward"] = DENIED
    cluster.answers["/apis/apps/v1/namespaces/aegaeon-system/deployments"] = refused(403, "no Deployments for you")

    result = run(cluster.kubeconfig(tmp_path), "doctor", "-o", "json")

    findings = [(finding["what"], finding["verdict"]) for finding in json.loads(result.stdout)]
    assert {("API server", "ok"), ("API server", "note"), ("scheduler", "note"), ("pools", "note")} <= set(findings)
    assert "wrong" not in dict(findings).values()
    assert result.exit_code == 0


def has_version(cluster: ApiServer) -> None:
    version = dict.fromkeys(("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"), "")
    version |= {"major": "1", "minor": "35", "gitVersion": "v1.35.4"}
    cluster.answers["/version/"] = (200, json.dumps(version))


def test_doctor_looks_at_nodes_first_and_waits_for_no_pod_of_one_that_is_lost(
    cluster: ApiServer, tmp_path: Path
) -> None:
    has_version(cluster)
    lost = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    nodes = {"node1": {"type": "Ready", "status": "True", "reason": "KubeletReady"}, "node2": lost}
    cluster.has(
        "/api/v1/nodes",
        *({"metadata": {"name": name}, "status": {"conditions": [each]}} for name, each in nodes.items()),
    )
    cluster.pools("p")
    scheduler = pod("s", "scheduler")
    scheduler["spec"]["nodeName"] = "node2"
    cluster.pods(scheduler)

    result = run(cluster.kubeconfig(tmp_path), "doctor", "-o", "json")

    findings = [(finding["what"], finding["verdict"], finding["found"]) for finding in json.loads(result.stdout)]
    wrong = [(what, text) for what, verdict, text in findings if verdict == "wrong"]
    assert [text for what, text in wrong if what == "node"] == ["node2 is not ready: NodeStatusUnknown"]
    assert [text for what, text in wrong if what == "scheduler"] == [
        "GpuPool n/p: scheduler pod n/s is on node node2, which is not ready"
    ]
    assert [what for what, _, _ in findings].index("node") < [what for what, _, _ in findings].index("operator")
    assert result.exit_code == 1


@pytest.mark.parametrize(("age_s", "verdict"), [(1, "ok"), (70, "note")])
def test_doctor_says_how_old_statuses_are_that_nothing_renews(
    age_s: int, verdict: str, cluster: ApiServer, tmp_path: Path
) -> None:
    has_version(cluster)
    ready = {"type": "Ready", "status": "True", "reason": "Serving", "message": ""}
    pool = {"kind": "GpuPool", "metadata": {"name": "p", "namespace": "n"}, "status": {"conditions": [ready]}}
    cluster.has(CUSTOM.format(namespace="n", plural="gpupools"), pool)
    cluster.has(CUSTOM.format(namespace="n", plural="modelpools"))
    renewed = (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    lease = {"spec": {"holderIdentity": "the-operator", "renewTime": renewed}}
    path = "/apis/coordination.k8s.io/v1/namespaces/aegaeon-system/leases/aegaeon-operator"
    cluster.answers[path] = (200, json.dumps(lease))

    result = run(cluster.kubeconfig(tmp_path), "doctor", "-o", "json")

    (of_pool,) = (each for each in json.loads(result.stdout) if each["what"] == "GpuPool")
    assert (of_pool["verdict"], f"as of {age_s} s ago" in of_pool["found"]) == (verdict, verdict == "note")


def test_doctor_fails_where_no_api_server_answers(cluster: ApiServer, tmp_path: Path) -> None:
    file = cluster.kubeconfig(tmp_path)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        file.write_text(file.read_text().replace(str(cluster.port), str(silent.getsockname()[1])))
        result = run(file, "doctor", "-o", "json")

    (only,) = json.loads(result.stdout)
    assert (only["what"], only["verdict"], result.exit_code) == ("API server", "wrong", 1)
    assert "does not answer" in only["found"]


def test_a_namespace_without_pools_is_named(cluster: ApiServer, tmp_path: Path) -> None:
    cluster.pools(namespace="elsewhere")

    found = run(cluster.kubeconfig(tmp_path), "ps", "-n", "elsewhere")

    assert (found.exit_code, found.stdout, found.stderr) == (0, "", "no GpuPool in namespace elsewhere\n")


# ---- logs ----------------------------------------------------------------------------------------------------------


def test_pods_that_have_not_started_hide_no_logs_of_others(cluster: ApiServer, tmp_path: Path) -> None:
    cluster.model_pools(p="llama")
    cluster.pods(pod("e-0"), pod("e-1", phase="Pending"))
    cluster.log("e-0", LINE.format(1, "is resident"))
    cluster.log("e-1", refused(400, "pod e-1 does not have a host assigned")[1], 400)

    found = run(cluster.kubeconfig(tmp_path), "logs", "llama")

    assert (found.exit_code, found.output.count("is resident")) == (0, 1)


def test_a_log_that_cannot_be_read_is_said_beside_those_of_others(cluster: ApiServer, tmp_path: Path) -> None:
    cluster.model_pools(p="llama")
    cluster.pods(pod("e-0"), pod("e-1"), pod("e-2"))
    cluster.log("e-0", LINE.format(1, "is resident"))
    cluster.log("e-1", "unable to retrieve container logs for containerd://0123")
    cluster.log("e-2", refused(500, "the node is gone")[1], 500)

    found = run(cluster.kubeconfig(tmp_path), "logs", "llama")

    assert (found.exit_code, found.stdout.count("is resident")) == (1, 1)
    assert sorted(found.stderr.splitlines()) == [
        "log of pod n/e-1: unable to retrieve container logs for containerd://0123",
        "log of pod n/e-2: the node is gone",
    ]


def test_a_container_that_waits_for_its_next_start_has_one_log(cluster: ApiServer, tmp_path: Path) -> None:
    """Kubelets answer both questions, for this life and for the one before, with the only log that there is."""
    cluster.model_pools(p="llama")
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    cluster.pods(pod("e-0", restarts=3, state=waits), pod("e-1", restarts=1, state={"running": {}}))
    for name, previous in (("e-0", False), ("e-0", True), ("e-1", True)):
        cluster.log(name, LINE.format(1, "failed"), previous=previous)
    cluster.log("e-1", LINE.format(2, "is back"))

    found = run(cluster.kubeconfig(tmp_path), "logs", "llama")

    said = [tuple(line.split()[1::6]) for line in found.output.splitlines()]
    assert said == [("e-0", "failed"), ("e-1", "failed"), ("e-1", "is")]


@pytest.mark.parametrize("words", [(), ("-f",)])
def test_who_may_not_read_logs_learns_so_once(cluster: ApiServer, tmp_path: Path, words: tuple[str, ...]) -> None:
    cluster.model_pools(p="llama")
    cluster.pods(pod("e-0"), pod("e-1"))
    for name in ("e-0", "e-1"):
        cluster.log(name, refused(403, 'User "u" cannot get resource "pods/log"')[1], 403)

    found = run(cluster.kubeconfig(tmp_path), "logs", "llama", *words)

    assert (found.exit_code, found.output.count('cannot get resource "pods/log"')) == (2, 1)
    for thread in [thread for thread in threading.enumerate() if thread.name.startswith("log of ")]:
        thread.join(10.0)
        assert not thread.is_alive()  # else it asks the API server for ever


def test_of_two_pools_with_a_model_of_one_name_one_is_named(cluster: ApiServer, tmp_path: Path) -> None:
    cluster.model_pools(p="llama", q="llama")
    cluster.pods(pod("e-0"))
    cluster.log("e-0", LINE.format(1, "is resident"))
    file = cluster.kubeconfig(tmp_path)

    several = run(file, "logs", "llama")

    assert (several.exit_code, "select one with --pool" in several.output) == (2, True)
    assert run(file, "logs", "llama", "--pool", "q").exit_code == 0
    assert run(file, "logs", "llama", "--pool", "r").exit_code == 2
