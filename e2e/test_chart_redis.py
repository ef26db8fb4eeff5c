"""The Redis that the chart brings: what it renders starts a real server, and an upgrade keeps its password."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from aegaeon_gateway.tenancy.buckets import connect
from e2e.envoy import free_ports
from e2e.kubectl import REPOSITORY, helm, kubectl
from e2e.polling import poll

CHART = str(REPOSITORY / "helm" / "aegaeon")
NAMESPACE = "aegaeon-redis"
NAME = "release-redis"
OPTIONS = ("-n", NAMESPACE, "--kube-version=1.35.4", "--set", "redis.bundled=true")


@dataclass(frozen=True, slots=True)
class Bundled:
    """A running server: its port, and the folder of the Secret's files."""

    port: int
    secret: Path


@pytest.fixture
def bundled(kubeconfig: Path, tmp_path: Path) -> Iterator[Bundled]:
    """As the container would run it, with folders and port of this test."""
    if shutil.which("redis-server") is None:  # `make e2e` installs it as root only
        pytest.skip("redis-server is not installed; as root, apt-get install redis-server")
    rendered = list(yaml.safe_load_all(helm(kubeconfig, "template", "release", CHART, *OPTIONS)))
    secret, run = tmp_path / "secret", tmp_path / "run"
    for folder in (secret, run):
        folder.mkdir()
    for name, value in _named(rendered, "Secret")["data"].items():
        (secret / name).write_bytes(base64.b64decode(value))
    (container,) = _named(rendered, "Deployment")["spec"]["template"]["spec"]["containers"]
    (port,) = free_ports(1)
    (script,) = container["args"]
    for ours, theirs in ((secret, "/etc/redis"), (run, "/run/redis"), (f"--tls-port {port}", "--tls-port 6379")):
        assert theirs in script
        script = script.replace(theirs, str(ours))
    server = subprocess.Popen([*container["command"], script], stdout=subprocess.DEVNULL)
    _wait_for(port, server)
    yield Bundled(port, secret)
    server.terminate()
    assert server.wait(10) == 0  # the shell has become the server: it hears what kubelet sends


def _named(rendered: list[Any], kind: str) -> dict[str, Any]:
    (found,) = (one for one in rendered if one and one["kind"] == kind and one["metadata"]["name"] == NAME)
    return dict(found)


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        assert server.poll() is None
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    poll("the server listens", listens, 90)


async def test_gateways_share_its_buckets_with_the_password_and_the_authority_of_the_secret(
    bundled: Bundled, caplog: pytest.LogCaptureFixture
) -> None:
    # Its certificate is of the Service's name, which does not resolve here; the next test compares it with that.
    url = f"rediss://127.0.0.1:{bundled.port}/0?ssl_check_hostname=false"
    one, two = (connect(url, str(bundled.secret / "password"), str(bundled.secret / "ca.crt")) for _ in range(2))
    assert (await one.buckets.take("k", 10, 1, 10, 0)).wait_s == 0
    assert (await two.buckets.take("k", 10, 1, 10, 0)).wait_s > 0
    for each in (one, two):
        await each.close()
    assert "Redis is unavailable" not in caplog.text


def test_its_certificate_has_the_name_that_gateways_are_configured_with(bundled: Bundled) -> None:
    context = ssl.create_default_context(cafile=str(bundled.secret / "ca.crt"))
    plain = socket.create_connection(("127.0.0.1", bundled.port), 5)
    with context.wrap_socket(plain, server_hostname=f"{NAME}.{NAMESPACE}.svc") as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100).startswith(b"-NOAUTH")


def test_an_upgrade_keeps_the_password_and_an_uninstall_keeps_the_crds(kubeconfig: Path, api: object) -> None:
    def secret() -> Any:
        return json.loads(kubectl(kubeconfig, "-n", NAMESPACE, "get", "secret", NAME, "-o", "json"))["data"]

    given = ("release", CHART, "-n", NAMESPACE, "--set", "redis.bundled=true")
    # `kubectl apply -f crds/` brought the definitions before: they are taken over.
    helm(kubeconfig, "install", *given, "--create-namespace", "--take-ownership", "--force-conflicts")
    before = secret()
    helm(kubeconfig, "upgrade", *given, "--set", "operator.logLevel=debug")
    assert secret() == before
    helm(kubeconfig, "uninstall", "release", "-n", NAMESPACE)
    kinds = "deploy,sts,svc,sa,secret,role,rolebinding,netpol,pdb"
    left = kubectl(kubeconfig, "-n", NAMESPACE, "get", kinds, "-o", "name").split()
    assert [one for one in left if "release" in one] == []
    assert "gpupools.serving.aegaeon.io" in kubectl(kubeconfig, "get", "crd", "-o", "name")
    kubectl(kubeconfig, "delete", "namespace", NAMESPACE, "--timeout=240s")
