"""The service's own TLS: its certificate files are looked at again, and a change is taken over.

Renewed files take effect for new connections, without a restart. A pair that cannot be used (half
written, not belonging together, expired) is refused with one line in the log, and the pair before
goes on. Where a platform ends TLS there are no files and nothing of this runs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import structlog
from cryptography import x509

from app.domain.errors import SettingsInvalid

_LOG = structlog.get_logger(__name__)
_Seen: TypeAlias = tuple[tuple[int, int, int], ...] | None


class CertificateFiles:
    """A certificate chain and its key, and the contexts that are made of them.

    `context` is for the listening socket: each new connection is moved to the newest good pair.
    SettingsInvalid if the pair is not usable at the start.
    """

    def __init__(
        self,
        certificate_file: Path,
        key_file: Path,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Reads the files."""
        self._files = (certificate_file, key_file)
        self._clock = clock
        self._seen = self._look()
        try:
            self._newest = self._load()
        except (OSError, ValueError) as error:
            raise SettingsInvalid([f"{certificate_file}, {key_file}: {_word(error)}"]) from None
        self.context = self._newest
        # Called for every handshake, whether the client names a server or not.
        self.context.sni_callback = self._use_newest

    def reload(self) -> bool:
        """Look at the files; True if there is a new pair and it is in use now. Blocks shortly."""
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            newest = self._load()
        except (OSError, ValueError) as error:
            _LOG.error("tls.pair_refused", cause=_word(error), file=str(self._files[0]))
            return False
        self._newest = newest
        _LOG.info("tls.pair_renewed", file=str(self._files[0]))
        return True

    async def keep_fresh(self, every_seconds: float) -> None:
        """Look at the files now and then, until cancelled."""
        while True:
            await asyncio.sleep(every_seconds)
            await asyncio.to_thread(self.reload)

    def _use_newest(
        self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        connection.context = self._newest

    def _look(self) -> _Seen:
        """What tells one state of the files from another, through links too."""
        try:
            stats = [path.stat() for path in self._files]
        except OSError:
            return None
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)

    def _load(self) -> ssl.SSLContext:
        """A context with the pair. OSError (ssl.SSLError is one) or ValueError if it is bad."""
        certificate_file, key_file = self._files
        leaf = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        if leaf.not_valid_after_utc <= self._clock():
            raise ValueError("the certificate has expired")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate_file, key_file)
        return context


def _word(error: OSError | ValueError) -> str:
    """What is wrong, in few words; never anything of the files."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "the certificate and the key are not usable together"
    if isinstance(error, OSError):
        return error.strerror or "cannot be read"
    return str(error) if str(error) == "the certificate has expired" else "not a PEM certificate"
