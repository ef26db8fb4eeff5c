"""`kubectl aegaeon` as people run it, by kubectl, through a real API server: a real operator and a real scheduler
answer, for pods that the controllers of the API server made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kubernetes import client

from e2e.cluster.layout import default_layout
from e2e.envoy import free_ports
from e2e.fake_nodes import LABEL
from e2e.kubectl import in_namespace, kubectl, kubectl_aegaeon
from e2e.kubelet import Machine, kubelet
from e2e.operating import apply, kill, killed_operator, models, namespace_of, objects, pool
from e2e.polling import poll

pytestmark = pytest.mark.cluster

DEPLOYMENT = "release-operator"
HERE = {"nodeSelector": LABEL}  # a cluster with nodes has a scheduler of its own, which would bind pods to those
DAY = "2026-11-26"


def said_at(second: int, text: str) -> str:
    """A line of one of our processes, with the kubelet's time in front."""
    return f"{DAY}T04:00:0{second}.500000000Z {DAY} 04:00:0{second},499 INFO aegaeon: {text}"


GATEWAY = (said_at(1, "llama has a tokenizer"), said_at(2, "mistral has none"))
SCHEDULER = (said_at(3, "serving 2 models"), said_at(4, "model llama changes: preparing the new version"))
ENGINE = (
    said_at(0, "attached"),
    said_at(5, "llama failed"),
    f"{DAY}T04:00:05.500000001Z Traceback (most recent call last):",
    f"{DAY}T04:00:05.500000002Z RuntimeError: out of memory",
    said_at(6, "llama-large is resident"),
)


@dataclass(frozen=True, slots=True)
class Plugin:
    """A person's kubectl, whose PATH has the plugin."""

    kubeconfig: Path
    machine: Machine

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return kubectl_aegaeon(self.kubeconfig, *words)

    def run(self, *words: str) -> tuple[int, str, str]:
        """Exit status, standard output and error."""
        process = self.begin(*words)
        said, complaint = process.communicate(timeout=120)
        return process.returncode, said, complaint

    def said(self, *words: str) -> str:
        """Of a command that succeeds, and complains of nothing."""
        status, said, complaint = self.run(*words)
        assert (status, complaint) == (0, ""), said
        return said

    def log(self, pod: str, *lines: str) -> None:
        """More of a pod's log."""
        with (self.machine.logs / pod).open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))


def pod_names(kubeconfig: Path) -> list[str]:
    """Of pods that are ready."""
    found = [one for one in objects(kubeconfig, "pods") if one["status"].get("phase") == "Running"]
    return sorted(one["metadata"]["name"] for one in found)


@pytest.fixture(scope="module")
def own_namespace(api: object, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig whose namespace is new, and pods may run there."""
    name = f"kubectl-{uuid4().hex[:8]}"
    own = in_namespace(kubeconfig, name, tmp_path_factory.mktemp("kubeconfig"))
    kubectl(own, "create", "namespace", name)
    return own


@pytest.fixture(scope="module")
def running(api: client.ApiClient, own_namespace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugin]:
    """A pool `demo` with two schedulers, a gateway and two engines, and the operator in the same namespace."""
    status_port, metrics_port = free_ports(2)
    folder = tmp_path_factory.mktemp("scheduler")
    machine = Machine(
        tmp_path_factory.mktemp("logs"), {("demo-scheduler", 7003): status_port, (DEPLOYMENT, 9090): metrics_port}
    )
    # Without a name server the operator cannot reach the scheduler, and would start a second one during a test.
    spec: dict[str, Any] = {"engines": {"replicas": 2}, "gateway": {"replicas": 1}, "scheduling": {"standby": True}}
    spec |= {"podTemplate": HERE, "controlPodTemplate": HERE}
    apply(own_namespace, pool("demo", **spec), models("red", "demo", "llama", "qwen2"))
    apply(own_namespace, deployment())
    namespace = namespace_of(own_namespace)
    with (
        a_scheduler(folder, status_port),
        kubelet(api, default_layout().machine_ip, namespace, machine),
        killed_operator(own_namespace, "the-operator", metrics_port),
    ):
        poll("all pods run", lambda: len(pod_names(own_namespace)) == 6, 90, lambda: str(pod_names(own_namespace)))
        yield Plugin(own_namespace, machine)
        kubectl(own_namespace, "delete", "namespace", namespace, "--timeout=120s")  # a kubelet lets its pods go


@pytest.fixture
def plugin(running: Plugin) -> Plugin:
    """With pods that have said nothing."""
    for log in running.machine.logs.glob("*-*"):
        log.unlink()
    return running


def deployment() -> dict[str, Any]:
    """As the chart has the operator's; its process is one of this machine."""
    labels = {"app.kubernetes.io/name": "aegaeon-operator", "app.kubernetes.io/instance": "release"}
    container = {"name": "operator", "image": "localhost/aegaeon-control:1"}
    template = {"metadata": {"labels": labels}, "spec": {**HERE, "containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": DEPLOYMENT, "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


@contextmanager
def a_scheduler(folder: Path, port: int) -> Iterator[None]:
    """With two models and no engine."""
    entries = [
        {"name": name, "source": {"directory": f"/srv/models/{name}"}, "ttft_s": 5, "tbt_s": 0.2}
        for name in ("llama", "qwen2")
    ]
    config = {"listen": f"unix:{folder}/s", "status_listen": f"127.0.0.1:{port}", "pool": "demo", "models": entries}
    file = folder / "scheduler.json"
    file.write_text(json.dumps(config), "utf-8")
    process = subprocess.Popen([sys.executable, "-m", "aegaeon_scheduler", "--config", str(file)])
    try:
        yield
    finally:
        kill(process)


def test_ps_and_top_show_what_the_scheduler_of_the_pool_says(plugin: Plugin) -> None:
    namespace = namespace_of(plugin.kubeconfig)

    heading, *lines = plugin.said("ps").splitlines()
    assert heading.split()[:5] == ["NAMESPACE", "POOL", "MODEL", "STATE", "ENGINES"]
    assert [line.split()[:3] for line in lines] == [[namespace, "demo", name] for name in ("llama", "qwen2")]

    found = json.loads(plugin.said("ps", "demo", "-n", namespace, "-o", "json"))
    assert [(one["model"], one["engines"], one["on_time"]) for one in found] == [
        ("llama", [], None),
        ("qwen2", [], None),
    ]

    status = json.loads(plugin.said("top", "--once", "-o", "json"))
    assert [one["model"] for one in status["models"]] == ["llama", "qwen2"]
    picture = plugin.said("top", "demo", "--once")
    assert "pool demo" in picture
    assert "qwen2" in picture


def test_top_follows_the_pool_until_it_is_ended(plugin: Plugin) -> None:
    process = plugin.begin("top", "-o", "json", "--interval", "0.2")
    assert process.stdout
    uptimes = [json.loads(process.stdout.readline())["uptime_s"] for _ in range(3)]
    process.kill()
    process.communicate()
    assert uptimes == sorted(set(uptimes))


def test_a_context_of_a_kubeconfig_is_chosen_by_its_name(plugin: Plugin, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(plugin.kubeconfig.read_bytes())
    context = kubectl(other, "config", "current-context").strip()
    kubectl(other, "config", "rename-context", context, "mine")
    found = json.loads(kubectl(other, "config", "view", "--minify", "-o", "json"))["contexts"][0]["context"]
    elsewhere = (f"--cluster={found['cluster']}", f"--user={found['user']}", "--namespace=kube-public")
    kubectl(other, "config", "set-context", "elsewhere", *elsewhere)
    kubectl(other, "config", "use-context", "elsewhere")

    status, said, complaint = plugin.run("ps", "--kubeconfig", str(other))
    assert (status, said, complaint) == (0, "", "no GpuPool in namespace kube-public\n")
    assert "llama" in plugin.said("ps", "--kubeconfig", str(other), "--context", "mine")
    status, _, complaint = plugin.run("ps", "--kubeconfig", str(other), "--context", "yours")
    assert (status, "not in the kubeconfig, which defines" in complaint) == (2, True)


def test_logs_of_a_model_are_those_of_all_pods_that_name_it_by_time(plugin: Plugin) -> None:
    scheduler, gateway = (
        next(one for one in pod_names(plugin.kubeconfig) if part in one) for part in ("-scheduler-", "-gateway-")
    )
    plugin.log(scheduler, *SCHEDULER)
    plugin.log(gateway, *GATEWAY)
    plugin.log("demo-engine-0", *ENGINE)
    plugin.log("demo-engine-1", said_at(7, "qwen2 is resident"))

    lines = plugin.said("logs", "llama").splitlines()
    assert [line.split(" ")[1] for line in lines] == [gateway, scheduler, *["demo-engine-0"] * 3]
    assert lines[-1].endswith(" RuntimeError: out of memory")

    found = [json.loads(line) for line in plugin.said("logs", "llama", "-o", "json", "--all").splitlines()]
    assert len(found) == len(GATEWAY) + len(SCHEDULER) + len(ENGINE)
    assert [one["time"] for one in found] == sorted(one["time"] for one in found)
    assert not plugin.said("logs", "llama", "--tail", "0")

    status, _, complaint = plugin.run("logs", "mistral")
    assert (status, "they serve llama, qwen2" in complaint) == (2, True)


def test_logs_are_followed_with_what_other_pods_say_later(plugin: Plugin) -> None:
    plugin.log("demo-engine-0", *ENGINE)
    process = plugin.begin("logs", "llama", "-f")
    assert process.stdout
    before = [process.stdout.readline() for _ in range(3)]
    plugin.log("demo-engine-1", said_at(8, "qwen2 is fetched"), said_at(9, "llama is fetched"))
    after = process.stdout.readline()
    process.kill()
    process.communicate()
    assert ["demo-engine-0" in line for line in before] == [True] * 3
    assert after.split(" ", 2)[1:] == ["demo-engine-1", f"{DAY} 04:00:09,499 INFO aegaeon: llama is fetched\n"]


@pytest.fixture
def reader(plugin: Plugin, tmp_path: Path) -> Plugin:
    """An account that may list pools and pods, and nothing else: a test gives it more."""
    own = tmp_path / "reader"
    own.write_bytes(plugin.kubeconfig.read_bytes())
    kubectl(plugin.kubeconfig, "create", "serviceaccount", "reader")
    allow(plugin, "list", "pods,gpupools.serving.aegaeon.io,modelpools.serving.aegaeon.io")
    token = kubectl(plugin.kubeconfig, "create", "token", "reader").strip()
    kubectl(own, "config", "set-credentials", "reader", f"--token={token}")
    kubectl(own, "config", "set-context", "--current", "--user=reader")
    return replace(plugin, kubeconfig=own)


def allow(plugin: Plugin, verbs: str, resources: str) -> None:
    """The reader may do that in the namespace, too."""
    name = f"reader-{uuid4().hex[:8]}"
    account = f"{namespace_of(plugin.kubeconfig)}:reader"
    kubectl(plugin.kubeconfig, "create", "role", name, f"--verb={verbs}", f"--resource={resources}")
    kubectl(plugin.kubeconfig, "create", "rolebinding", name, f"--role={name}", f"--serviceaccount={account}")


def test_who_may_not_look_learns_so_and_who_may_by_the_guide_can(plugin: Plugin, reader: Plugin) -> None:
    status, _, complaint = reader.run("ps")
    assert (status, "pods/portforward" in complaint) == (1, True), complaint
    assert "-+-+-" not in complaint

    status, said, complaint = reader.run("doctor", "--system", namespace_of(plugin.kubeconfig), "-o", "json")
    verdicts = {one["what"]: one["verdict"] for one in json.loads(said)}
    assert (verdicts["API server"], verdicts["scheduler"], verdicts["operator"]) == ("ok", "note", "note"), complaint

    status, _, complaint = reader.run("logs", "llama")
    assert (status, complaint.count("pods/log")) == (2, 1), complaint

    allow(plugin, "get,create", "pods/portforward")
    allow(plugin, "get", "pods/log")
    assert "llama" in reader.said("ps")
    assert not reader.said("logs", "llama")


def test_doctor_says_what_is_wrong_and_what_is_well(plugin: Plugin) -> None:
    namespace = namespace_of(plugin.kubeconfig)

    status, said, complaint = plugin.run("doctor", "--system", namespace, "-o", "json")

    findings = {one["what"]: one for one in json.loads(said)}
    assert status == 1, complaint  # the operator cannot reach the scheduler by its name from here
    assert findings["GpuPool"]["verdict"] == "wrong"
    assert findings["GpuPool"]["found"].startswith(f"{namespace}/demo: ")
    for what in ("API server", "definitions", "operator", "leader", "certificates", "pods"):
        assert findings[what]["verdict"] == "ok", findings[what]
    assert "the-operator" in findings["leader"]["found"]
    assert findings["scheduler"]["found"] == f"{namespace}/demo: answers, 0 engines, 2 models, policy slack"

    status, said, _ = plugin.run("doctor", "--system", "default")
    assert (status, "is not in namespace default" in said) == (1, True)
