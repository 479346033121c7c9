import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from app.embedded import tls
from app.embedded.tls import ensure_certificates


def handshake(files, name, *, certificate_file=None, key_file=None):
    """A TLS handshake in memory, checked as strictly as Python 3.13 does by default."""
    trust = ssl.create_default_context(cafile=files.ca_file)
    trust.verify_flags |= ssl.VERIFY_X509_STRICT
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate_file or files.certificate_file, key_file or files.key_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trust.wrap_bio(to_client, to_server, server_hostname=name)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.version()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_chain_is_valid_for_every_loopback_name(tmp_path, name):
    files = ensure_certificates(tmp_path)

    assert handshake(files, name) == "TLSv1.3"


def test_other_names_are_not_covered(tmp_path):
    files = ensure_certificates(tmp_path)

    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, "example.com")


def test_authority_cannot_vouch_for_another_site(tmp_path, monkeypatch):
    files = ensure_certificates(tmp_path)
    monkeypatch.setattr(tls, "SERVER_NAMES", [x509.DNSName("example.com")])
    authority = tls._read(files.ca_file, tmp_path / "ca.key", datetime.now(UTC))
    forged = tls._make_server(authority, datetime.now(UTC))
    tls._write(forged, tmp_path / "forged.pem", tmp_path / "forged.key")

    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
        handshake(
            files,
            "example.com",
            certificate_file=tmp_path / "forged.pem",
            key_file=tmp_path / "forged.key",
        )


def test_certificates_are_kept_between_starts(tmp_path):
    before = ensure_certificates(tmp_path).certificate_file.read_bytes()

    assert ensure_certificates(tmp_path).certificate_file.read_bytes() == before


def test_certificate_near_its_end_is_renewed_by_the_same_authority(tmp_path):
    long_ago = datetime.now(UTC) - timedelta(days=tls.SERVER_DAYS - 29)
    files = ensure_certificates(tmp_path, now=long_ago)
    authority, server = files.ca_file.read_bytes(), files.certificate_file.read_bytes()

    ensure_certificates(tmp_path)

    assert files.ca_file.read_bytes() == authority
    assert files.certificate_file.read_bytes() != server
    assert handshake(files, "localhost") == "TLSv1.3"


@pytest.mark.parametrize("damaged", ["ca.pem", "ca.key", "server.pem", "server.key"])
def test_damaged_file_is_replaced(tmp_path, damaged):
    files = ensure_certificates(tmp_path)
    (tmp_path / damaged).write_text("nonsense")

    ensure_certificates(tmp_path)

    assert handshake(files, "localhost") == "TLSv1.3"


def test_key_of_another_certificate_is_replaced(tmp_path):
    files = ensure_certificates(tmp_path)
    other = ensure_certificates(tmp_path / "other")
    files.key_file.write_bytes(other.key_file.read_bytes())

    ensure_certificates(tmp_path)

    assert handshake(files, "localhost") == "TLSv1.3"


def test_private_keys_are_closed_to_others(tmp_path):
    ensure_certificates(tmp_path)

    for key in ("ca.key", "server.key"):
        assert (tmp_path / key).stat().st_mode & 0o777 == 0o600
    serialization.load_pem_private_key((tmp_path / "ca.key").read_bytes(), None)


def test_signatures_use_sha_256(tmp_path):
    files = ensure_certificates(tmp_path)

    certificate = x509.load_pem_x509_certificate(files.certificate_file.read_bytes())

    assert isinstance(certificate.signature_hash_algorithm, hashes.SHA256)
