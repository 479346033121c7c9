"""The service's own certificate: renewed without a restart, and never replaced by a bad one."""

import asyncio
import shutil
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from app.api.tls import CertificateFiles
from app.domain.errors import SettingsInvalid
from app.embedded.tls import TlsFiles, ensure_certificates


def renew(folder) -> TlsFiles:
    """A new pair of the same authority."""
    for name in ("server.pem", "server.key"):
        (folder / name).unlink()
    return ensure_certificates(folder)


@pytest.fixture
def files(tmp_path) -> TlsFiles:
    return ensure_certificates(tmp_path / "tls")


@pytest.fixture
def folder(tmp_path, files):
    return tmp_path / "tls"


async def shown(port: int) -> bytes:
    """The certificate that a new connection gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()
    return found


def certificate_of(files: TlsFiles) -> bytes:
    return ssl.PEM_cert_to_DER_cert(files.certificate_file.read_text())


def test_pair_is_taken_over_only_when_it_changed_and_is_good(files, folder):
    pair = CertificateFiles(files.certificate_file, files.key_file)
    before = pair._newest

    assert not pair.reload()
    files.key_file.write_text("half written")
    assert not pair.reload()
    assert pair._newest is before
    renew(folder)
    assert pair.reload()
    assert pair._newest is not before


@pytest.mark.parametrize("bad", ["foreign_key", "no_pem", "missing", "expired"])
def test_bad_pair_is_refused_at_the_start_by_a_sentence(bad, files, tmp_path):
    now = datetime.now(UTC)
    match bad:
        case "foreign_key":
            shutil.copy(ensure_certificates(tmp_path / "other").key_file, files.key_file)
        case "no_pem":
            files.certificate_file.write_text("none")
        case "missing":
            files.key_file.unlink()
        case "expired":
            now += timedelta(days=400)

    with pytest.raises(SettingsInvalid) as refused:
        CertificateFiles(files.certificate_file, files.key_file, clock=lambda: now)

    assert str(files.certificate_file) in str(refused.value)


async def test_new_connections_get_the_renewed_pair_and_old_ones_live_on(
    open_service, files, folder
):
    service = await open_service_over_tls(open_service, files)
    trust = ssl.create_default_context(cafile=files.ca_file)
    url = f"https://127.0.0.1:{service.port}/livez"
    async with httpx.AsyncClient(verify=trust) as old:
        assert (await old.get(url)).status_code == 200
        assert await shown(service.port) == certificate_of(files)
        await handshake_that_never_ends_is_given_up(service.port)

        renewed = certificate_of(renew(folder))
        await until(lambda: shown(service.port), renewed)
        files.key_file.write_text("half written")
        await until_logged(service, "tls.pair_refused")

        assert await shown(service.port) == renewed
        assert (await old.get(url)).status_code == 200
    async with httpx.AsyncClient(verify=trust) as new:
        assert (await new.get(url)).status_code == 200


async def open_service_over_tls(open_service, files):
    service = await open_service(
        ready=False,
        SERVER__TLS_CERTIFICATE_FILE=files.certificate_file,
        SERVER__TLS_KEY_FILE=files.key_file,
        SERVER__TLS_CHECK_SECONDS=0.05,
        SERVER__FIRST_BYTE_TIMEOUT_SECONDS=0.5,
    )
    await until_logged(service, "service.listening")
    return service


async def handshake_that_never_ends_is_given_up(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x16\x03\x01")
    async with asyncio.timeout(30):
        with suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


async def until(read, wanted) -> None:
    async with asyncio.timeout(30):
        while await read() != wanted:
            await asyncio.sleep(0.02)


async def until_logged(service, event: str) -> None:
    async with asyncio.timeout(60):
        while event not in service.log_text():
            await asyncio.sleep(0.02)
