"""A certificate authority for this laptop only, and the service's certificate.

The authority is named for development and may vouch for loopback names and addresses and nothing
else (name constraints), so trusting it risks no other site even if its key is stolen.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.embedded.folder import write_private

CA_DAYS = 3650
# Apple's systems refuse longer ones.
SERVER_DAYS = 397
RENEW_BEFORE = timedelta(days=30)
READABLE = 0o644

PERMITTED: list[x509.GeneralName] = [
    x509.DNSName("localhost"),
    x509.IPAddress(IPv4Network("127.0.0.0/8")),
    x509.IPAddress(IPv6Network("::1/128")),
]
SERVER_NAMES: list[x509.GeneralName] = [
    x509.DNSName("localhost"),
    x509.IPAddress(IPv4Address("127.0.0.1")),
    x509.IPAddress(IPv6Address("::1")),
]


@dataclass(frozen=True)
class TlsFiles:
    """Where the PEM files are; the keys are readable by their owner only."""

    ca_file: Path
    certificate_file: Path
    key_file: Path


@dataclass(frozen=True)
class _Identity:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def ensure_certificates(folder: Path, *, now: datetime | None = None) -> TlsFiles:
    """Return certificates valid for 30 days at least, made anew only where that is needed.

    A renewed server certificate keeps its authority, so who trusts `ca.pem` need not do it again.
    Unreadable or unfitting files are replaced.
    """
    moment = now or datetime.now(UTC)
    files = TlsFiles(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    ca_key_file = folder / "ca.key"
    authority = _read(files.ca_file, ca_key_file, moment)
    if authority is None:
        authority = _make_authority(moment)
        _write(authority, files.ca_file, ca_key_file)
    server = _read(files.certificate_file, files.key_file, moment)
    if server is None or not _signed_by(server.certificate, authority.certificate):
        _write(_make_server(authority, moment), files.certificate_file, files.key_file)
    return files


def _read(certificate_file: Path, key_file: Path, now: datetime) -> _Identity | None:
    """The stored pair, None unless it is whole, fits together and lasts."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return None
    if certificate.public_key() != key.public_key():
        return None
    lasts = certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - RENEW_BEFORE
    return _Identity(certificate, key) if lasts else None


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _write(identity: _Identity, certificate_file: Path, key_file: Path) -> None:
    """The key first: a certificate without its key would be replaced, not used."""
    key = identity.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(key_file, key)
    write_private(certificate_file, identity.certificate.public_bytes(serialization.Encoding.PEM))
    certificate_file.chmod(READABLE)


def _make_authority(now: datetime) -> _Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, "execution-plane development CA (this laptop)")]
    )
    certificate = (
        _builder(name, name, key.public_key(), now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.NameConstraints(PERMITTED, None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return _Identity(certificate, key)


def _make_server(authority: _Identity, now: datetime) -> _Identity:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    issuer_key_id = authority.certificate.extensions.get_extension_for_class(
        x509.SubjectKeyIdentifier
    ).value
    certificate = (
        _builder(subject, authority.certificate.subject, key.public_key(), now, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(SERVER_NAMES), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key_id),
            critical=False,
        )
        .sign(authority.key, hashes.SHA256())
    )
    return _Identity(certificate, key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
