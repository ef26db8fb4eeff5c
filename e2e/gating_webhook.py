"""A mutating webhook that does to pods what Kueue's does: those of a queue get its scheduling gate."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes import client

from e2e.cluster.layout import url
from e2e.https import JsonHandler, https

QUEUE = "kueue.x-k8s.io/queue-name"
GATE = "kueue.x-k8s.io/admission"
_NAME = "gating.aegaeon.example"


@contextmanager
def gating(api: client.ApiClient, address: str, namespace: str, folder: Path) -> Iterator[None]:
    """In force for pods of a namespace. `address`: of this machine, as the API server reaches it."""
    registered = client.AdmissionregistrationV1Api(api)
    with https(_Gates, address, folder) as port:
        configuration = _configuration(f"{url(address, port, 'https')}/", (folder / "ca.crt").read_bytes(), namespace)
        try:
            registered.create_mutating_webhook_configuration(configuration)
            yield
        finally:
            registered.delete_mutating_webhook_configuration(_NAME)


class _Gates(JsonHandler):
    """Answers admission reviews of pods."""

    def do_POST(self) -> None:  # noqa: N802  # http.server's name
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        patch = [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]
        text = base64.b64encode(json.dumps(patch).encode()).decode()
        answer = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": text}
        self.answer(200, {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer})


def _configuration(at: str, authority: bytes, namespace: str) -> client.V1MutatingWebhookConfiguration:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    hook: Any = {
        "name": _NAME,
        "clientConfig": {"url": at, "caBundle": base64.b64encode(authority).decode()},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": {"matchExpressions": [{"key": QUEUE, "operator": "Exists"}]},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return client.V1MutatingWebhookConfiguration(metadata=client.V1ObjectMeta(name=_NAME), webhooks=[hook])
