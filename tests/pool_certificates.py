"""Folders of certificates as pods have them mounted, and certificates that no pool would issue."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from aegaeon_operator.pki import Pair


def mount(folder: Path, authority: Pair, pair: Pair) -> Path:
    """A folder as kubelet mounts a Secret: its files change all together, by one link."""
    version = folder / f"..{len(list(folder.glob('..*')))}" if folder.exists() else folder / "..0"
    version.mkdir(parents=True)
    for name, content in (("ca.crt", authority.certificate), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (version / name).write_bytes(content)
    (folder / "..new").symlink_to(version)
    os.replace(folder / "..new", folder / "..data")
    return folder


def named(authority: Pair, now: datetime, *names: str | IPv4Address) -> Pair:
    """A certificate of the pool's authority with these DNS names and addresses, whatever they are."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "aegaeon.internal")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(list(map(_general, names))), critical=False)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), private)


def _general(name: str | IPv4Address) -> x509.GeneralName:
    return x509.DNSName(name) if isinstance(name, str) else x509.IPAddress(name)
