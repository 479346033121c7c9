"""Debian's PgBouncer in transaction mode, in front of all databases of one server."""

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

PGBOUNCER = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"


class PgBouncer:
    """Between `start` and `stop`, `through(address)` leads to the same database by the pooler."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self._to = urlsplit(dsn)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._port = listening.getsockname()[1]

    def through(self, dsn: str) -> str:
        """The address of that database behind the pooler; one of another server stays."""
        to = urlsplit(dsn)
        if to.port != self._to.port:
            return dsn
        return f"postgresql://{to.username}:{to.password}@127.0.0.1:{self._port}{to.path}"

    async def start(self) -> "PgBouncer":
        if not Path(PGBOUNCER).exists():
            assert os.environ.get("CI") != "true", "the CI installs pgbouncer"
            pytest.skip("pgbouncer is not installed (Debian package pgbouncer)")
        to, folder = self._to, self._folder
        _open_to_all(folder)
        (folder / "users.txt").write_text(f'"{to.username}" "{to.password}"\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={to.hostname} port={to.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self._port}\n"
            f"pool_mode = transaction\nauth_type = scram-sha-256\nauth_file = {folder}/users.txt\n"
            "unix_socket_dir =\ndefault_pool_size = 4\nmax_client_conn = 500\n"
            "server_idle_timeout = 5\n"
        )
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        self._process = subprocess.Popen(
            [*(as_nobody if os.geteuid() == 0 else []), PGBOUNCER, f"{folder}/pgbouncer.ini"],
            stderr=subprocess.DEVNULL,
        )
        await self._until_open()
        return self

    async def _until_open(self) -> None:
        for _ in range(200):
            try:
                connection = await asyncpg.connect(
                    self.through(self._to.geturl()), statement_cache_size=0
                )
                await connection.close()
                return
            except (OSError, asyncpg.PostgresError):
                await asyncio.sleep(0.05)
        raise AssertionError("the pooler did not open")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)


def _open_to_all(folder: Path) -> None:
    """pytest's own folders are closed to others; the pooler refuses to run as root."""
    folder.chmod(0o755)
    for parent in folder.parents:
        if "pytest-of-" in str(parent):  # those of a parallel run's workers as well
            parent.chmod(0o755)
