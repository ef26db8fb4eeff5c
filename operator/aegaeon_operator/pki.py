"""Certificates of a pool's internal streams: one authority for each pool, and certificates that it issues.

A process with a certificate of the pool's authority is a member of the pool, in the role that the certificate names,
so a certificate contains no name or address of its pod. Keys are of curve P-256, which every TLS library supports.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aegaeon_proto.roles import Role

AUTHORITY_LIFE = timedelta(days=3650)
LIFE = timedelta(days=90)
# Nodes' clocks differ; a certificate must be valid on all of them as soon as it is issued.
_SKEW = timedelta(minutes=5)
# Share of a certificate's life after which it is renewed: pods need time to read the new one.
_RENEW_AT = 2 / 3


AUTHORITY_USAGE = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
"""key usage of an authority: Python 3.13 verifies it"""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_authority(pool: str, now: datetime) -> Pair:
    """Return a new authority for a pool. `now` has a time zone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"aegaeon pool {pool}"[:64])])
    builder = (
        _certificate(name, name, key.public_key(), now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(AUTHORITY_USAGE, critical=True)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Pair, role: Role, now: datetime, life: timedelta = LIFE) -> Pair:
    """Issue a certificate for a role of the pool, for use as a server and as a client."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role.dns_name)])
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        _certificate(subject, issuer.subject, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(role.dns_name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(identifier, critical=False)
    )
    return _pair(builder.sign(issuer_key, hashes.SHA256()), key)


def is_due(certificate: bytes, now: datetime) -> bool:
    """Return whether to renew a certificate: late in its life, or before its begin, since a clock was ahead."""
    parsed = x509.load_pem_x509_certificate(certificate)
    begin, end = parsed.not_valid_before_utc, parsed.not_valid_after_utc
    return not begin <= now < begin + (end - begin) * _RENEW_AT


def expiry(certificate: bytes) -> datetime:
    """Return the time at which a certificate expires, in UTC. Raises ValueError for a malformed certificate."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def is_of(certificate: bytes, role: Role) -> bool:
    """Return whether a certificate names this role and no other."""
    parsed = x509.load_pem_x509_certificate(certificate)
    try:
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return names.get_values_for_type(x509.DNSName) == [role.dns_name]


def signed_by(certificate: bytes, authority: bytes) -> bool:
    """Return whether the authority (PEM certificates) issued the certificate."""
    parsed = x509.load_pem_x509_certificate(certificate)
    return any(_issued(parsed, issuer) for issuer in x509.load_pem_x509_certificates(authority))


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, InvalidSignature):  # another name, another key
        return False
    return True


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
