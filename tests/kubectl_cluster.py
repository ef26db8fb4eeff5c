"""An API server of the test's own for the client of Kubernetes: it answers what a test lets it know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from local_servers import QuietHandler, serving

Json = dict[str, Any]
CUSTOM = "/apis/serving.aegaeon.io/v1alpha1/namespaces/{namespace}/{plural}"


def refused(status: int, message: str) -> tuple[int, str]:
    """As API servers say it."""
    return status, json.dumps({"kind": "Status", "status": "Failure", "message": message, "code": status})


@dataclass(slots=True)
class ApiServer:
    """`answers` by path: a status and a body; what is not in it is not found. `previous`: logs of former lives."""

    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    previous: dict[str, tuple[int, str]] = field(default_factory=dict)
    port: int = 0

    def has(self, path: str, *items: Json) -> None:
        """A list."""
        self.answers[path] = (200, json.dumps({"items": items}))

    def pools(self, *names: str, namespace: str = "n") -> None:
        """GpuPools."""
        path = CUSTOM.format(namespace=namespace, plural="gpupools")
        self.has(path, *({"kind": "GpuPool", "metadata": {"namespace": namespace, "name": name}} for name in names))

    def model_pools(self, **models: str) -> None:
        """A ModelPool with one model for each GpuPool."""
        made = [
            {
                "kind": "ModelPool",
                "metadata": {"namespace": "n", "name": f"of-{pool}"},
                "spec": {"gpuPoolRef": {"name": pool}, "models": [{"name": model}]},
            }
            for pool, model in models.items()
        ]
        self.has(CUSTOM.format(namespace="n", plural="modelpools"), *made)

    def pods(self, *pods: Json, namespace: str = "n") -> None:
        """Pods, whatever their labels."""
        self.has(f"/api/v1/namespaces/{namespace}/pods", *pods)

    def log(self, pod: str, text: str, status: int = 200, previous: bool = False) -> None:
        """Of a pod's container."""
        (self.previous if previous else self.answers)[f"/api/v1/namespaces/n/pods/{pod}/log"] = (status, text)

    def kubeconfig(self, folder: Path, **changed: Any) -> Path:
        """Of a user of it, whose namespace is `n`."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
            "current-context": "here",
        }
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump({name: value for name, value in {**config, **changed}.items() if value}))
        return file


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """One that listens on the loopback interface for the time of a `with`."""
    known = ApiServer()

    class Handler(QuietHandler, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            there = known.previous if parse_qs(url.query).get("previous") == ["true"] else known.answers
            status, body = there.get(url.path, refused(404, "not found"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.port = server.server_port
    with serving(server):
        yield known


def pod(name: str, component: str = "engine", **status: Any) -> Json:
    """One of a pool `p`; `state` and `restarts` are of its own container."""
    container = {
        "name": component,
        "image": "i",
        "imageID": "i",
        "ready": True,
        "restartCount": status.pop("restarts", 0),
        "state": status.pop("state", {}),
    }
    found = {"phase": "Running", "containerStatuses": [container], **status}
    labels = {"app.kubernetes.io/instance": "p", "app.kubernetes.io/component": component}
    spec = {"containers": [{"name": component}]}
    return {"metadata": {"name": name, "namespace": "n", "labels": labels}, "spec": spec, "status": found}
