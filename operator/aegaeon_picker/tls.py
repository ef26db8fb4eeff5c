"""The picker's certificate: from a Secret's files, or self-signed at the start."""

from __future__ import annotations

import datetime
import os
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aegaeon_picker.errors import PickerError

_VALID = datetime.timedelta(days=3650)
_SKEW = datetime.timedelta(hours=1)  # a peer's clock may be behind


def server_context(mode: str) -> ssl.SSLContext | None:
    """Return the TLS context: None for `off`, a new certificate for `selfSigned`, else from a folder with tls.crt and
    tls.key. Raises PickerError."""
    if mode == "off":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    if mode == "selfSigned":
        _load(context, *self_signed())
        return context
    folder = Path(mode)
    try:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    except OSError as error:
        raise PickerError(f"{folder}: tls.key and tls.crt cannot be read: {error.strerror or error}") from error
    return context


def self_signed() -> tuple[bytes, bytes]:
    """Return a new key and its certificate (PEM). Inference gateways do not verify it; it only encrypts the stream."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aegaeon-picker")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)


def _load(context: ssl.SSLContext, key: bytes, certificate: bytes) -> None:
    """Load a key from a file in memory: the context only reads files, and the key must not be on a disk."""
    file = os.memfd_create("picker-tls")
    try:
        os.write(file, key + certificate)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
