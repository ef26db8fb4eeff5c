"""A mutating webhook that does to pods what Kueue's does: those of a queue get its scheduling gate."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes import client

QUEUE = "kueue.x-k8s.io/queue-name"
GATE = "kueue.x-k8s.io/admission"
_NAME = "gating.aegaeon.example"


@contextmanager
def gating(api: client.ApiClient, address: str, namespace: str, folder: Path) -> Iterator[None]:
    """In force for pods of a namespace. `address`: of this machine, as the API server reaches it."""
    authority = _certificate(address, folder / "webhook.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "webhook.pem")
    registered = client.AdmissionregistrationV1Api(api)
    with ThreadingHTTPServer((address, 0), _Gates) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            url = f"https://{address}:{server.server_address[1]}/"
            registered.create_mutating_webhook_configuration(_configuration(url, authority, namespace))
            yield
        finally:
            registered.delete_mutating_webhook_configuration(_NAME)
            server.shutdown()
            serving.join()


class _Gates(BaseHTTPRequestHandler):
    """Answers admission reviews of pods."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        patch = [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]
        text = base64.b64encode(json.dumps(patch).encode()).decode()
        answer = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch", "patch": text}
        body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests have their own output."""


def _configuration(url: str, authority: bytes, namespace: str) -> client.V1MutatingWebhookConfiguration:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    hook: Any = {
        "name": _NAME,
        "clientConfig": {"url": url, "caBundle": base64.b64encode(authority).decode()},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": {"matchExpressions": [{"key": QUEUE, "operator": "Exists"}]},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return client.V1MutatingWebhookConfiguration(metadata=client.V1ObjectMeta(name=_NAME), webhooks=[hook])


def _certificate(address: str, file: Path) -> bytes:
    """One that signs itself, with its key in the file; PEM of the certificate alone."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).add_extension(names, critical=True)
    made = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    text = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(key.private_bytes(*form) + text)
    return text
