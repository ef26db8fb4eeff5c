"""The certificates of one cluster: an authority, the API server's, one for each client. Valid for a week."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from aegaeon_operator.pki import AUTHORITY_USAGE
from e2e.cluster.layout import DOMAIN, Layout

_LIFE = datetime.timedelta(days=7)
# Whom API servers behind the API server believe what they say of the user.
FRONT_PROXY = "front-proxy-client"
_SERVER_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    f"kubernetes.default.svc.{DOMAIN}",
    "localhost",
)


class Authority:
    """Signs certificates into a folder: NAME.crt and NAME.key."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("aegaeon-e2e", None)
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(AUTHORITY_USAGE, critical=True)
        self._write("ca", builder.sign(self._key, hashes.SHA256()), self._key)

    def issue(self, file: str, name: str, group: str | None = None, addresses: tuple[str, ...] = ()) -> None:
        """A certificate for `name` of `group`; with addresses it serves, too."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(name, group), self._name, key.public_key())
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        if addresses:
            names += [x509.DNSName(one) for one in (*_SERVER_NAMES, name)]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def _write(self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        (self._folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(self._folder / f"{file}.key", key)


def make(layout: Layout) -> None:
    """Everything that the cluster's parts and the person at the keyboard need."""
    authority = Authority(layout.pki)
    authority.issue("apiserver", "kube-apiserver", addresses=(layout.api_ip, "127.0.0.1", str(layout.services[1])))
    authority.issue("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
    authority.issue("front-proxy", FRONT_PROXY)
    _write_key(layout.pki / "service-accounts.key", rsa.generate_private_key(65537, 2048))
    authority.issue("admin", "kubernetes-admin", "system:masters")
    _write_kubeconfig(layout, "admin", layout.kubeconfig)
    authority.issue("controllers", "system:kube-controller-manager", "system:masters")
    for node in layout.nodes:
        authority.issue(node.name, f"system:node:{node.name}", "system:nodes")
    for who in ("controllers", *(node.name for node in layout.nodes)):
        _write_kubeconfig(layout, who, layout.kubeconfig_of(who))


def _write_kubeconfig(layout: Layout, who: str, file: Path) -> None:
    cluster = {"server": layout.api_url, "certificate-authority": str(layout.pki / "ca.crt")}
    user = {"client-certificate": str(layout.pki / f"{who}.crt"), "client-key": str(layout.pki / f"{who}.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "aegaeon", "cluster": cluster}],
        "users": [{"name": who, "user": user}],
        "contexts": [{"name": "aegaeon", "context": {"cluster": "aegaeon", "user": who}}],
        "current-context": "aegaeon",
    }
    file.touch(mode=0o600)
    file.write_text(yaml.safe_dump(config), "utf-8")


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    file.touch(mode=0o600)
    form = serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _subject(name: str, group: str | None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, group), *parts] if group else parts)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
