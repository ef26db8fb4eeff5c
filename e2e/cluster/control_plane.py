"""etcd, the API server and, where there are nodes, controllers and scheduler, in the control plane's namespace."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from aegaeon_cli.demo import clients
from e2e.cluster.layout import DOMAIN, Layout
from e2e.cluster.network import inside
from e2e.cluster.pki import FRONT_PROXY
from e2e.cluster.processes import find, start, stop, wait_for

_ETCD = "http://127.0.0.1:2379"
_API_SERVER = "kube-apiserver"
_SCHEDULER = "kube-scheduler"


def start_all(layout: Layout) -> None:
    """Start them; the API server answers when this returns."""
    start_etcd(layout)
    start_api_server(layout)
    start_controllers(layout)
    if layout.nodes:
        start_scheduler(layout)


def start_etcd(layout: Layout) -> None:
    """Alone in its namespace's loopback; nothing is kept when the machine loses power."""
    _start(
        layout,
        "etcd",
        f"--data-dir={layout.root}/etcd",
        "--unsafe-no-fsync",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--log-level=warn",
    )


def start_api_server(layout: Layout) -> None:
    """Returns when it is ready."""
    pki = layout.pki
    _start(
        layout,
        _API_SERVER,
        f"--etcd-servers={_ETCD}",
        "--secure-port=6443",
        f"--bind-address={layout.api_ip}",
        f"--advertise-address={layout.api_ip}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        *_aggregation(layout),
        # Without it `kubectl logs` and `exec` try to resolve the node's name.
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/service-accounts.key",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
        f"--service-cluster-ip-range={layout.services}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    )
    wait_for("the API server", lambda: ready(layout), layout, _API_SERVER)


def _aggregation(layout: Layout) -> list[str]:
    """API servers behind it (KEDA's metrics, for example) learn by headers who asks, from this client alone."""
    pki = layout.pki
    return [
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
        f"--requestheader-client-ca-file={pki}/ca.crt",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    ]


@contextmanager
def api_server_away(layout: Layout) -> Iterator[None]:
    """For the time of a `with`; etcd keeps what there was. It answers again after it.

    The scheduler begins anew: one that missed that a pod was deleted and made again ends itself, and here is no
    kubelet that starts it again.
    """
    for name in (_SCHEDULER, _API_SERVER):
        process = find(layout, name)
        assert process is not None, "the cluster is up"
        stop(layout, process)
    try:
        yield
    finally:
        start_api_server(layout)
        start_scheduler(layout)


def start_scheduler(layout: Layout) -> None:
    """Of pods to nodes."""
    _start(layout, _SCHEDULER, f"--kubeconfig={layout.kubeconfig_of('controllers')}", "--leader-elect=false")


def start_controllers(layout: Layout) -> None:
    """Garbage collection, service accounts, deployments and the rest."""
    _start(
        layout,
        "kube-controller-manager",
        f"--kubeconfig={layout.kubeconfig_of('controllers')}",
        f"--service-cluster-ip-range={layout.services}",
        "--use-service-account-credentials=true",
        f"--root-ca-file={layout.pki}/ca.crt",
        f"--service-account-private-key-file={layout.pki}/service-accounts.key",
        f"--cluster-signing-cert-file={layout.pki}/ca.crt",
        f"--cluster-signing-key-file={layout.pki}/ca.key",
        "--leader-elect=false",
    )


def ready(layout: Layout) -> bool:
    """Whether the API server says so itself."""
    context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
    context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
    try:
        clients.page(f"{layout.api_url}/readyz", 2, context)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
    return True


def _start(layout: Layout, name: str, *flags: str) -> None:
    start(layout, name, [str(layout.binaries / name), *flags], inside=inside(layout.control_plane))
