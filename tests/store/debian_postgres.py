"""PostgreSQL 15 as Debian installs it: the oldest server that the schema must work on."""

import signal
from pathlib import Path

from app.embedded.guarded import Guarded, clean_environment
from app.embedded.ports import LOOPBACK, free_port

PROGRAMS = Path("/usr/lib/postgresql/15/bin")


def is_installed() -> bool:
    return (PROGRAMS / "postgres").exists()


class DebianPostgres:
    """One server in a folder, with the owner `execution_plane`, whom nobody asks for a password."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log_file = folder / "postgres.log"
        self._port = free_port(0)
        self._server: Guarded | None = None

    @property
    def admin_dsn(self) -> str:
        return f"postgresql://postgres@{LOOPBACK}:{self._port}/postgres"

    @property
    def dsn(self) -> str:
        return f"postgresql://execution_plane@{LOOPBACK}:{self._port}/execution_plane"

    async def start(self) -> None:
        cluster = self._folder / "cluster"
        made = await self._run(
            "initdb",
            *("-D", cluster, "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8"),
            "--locale=C.UTF-8",
        )
        assert await made.wait(60) == 0, self._log_file.read_text()
        await made.stop()
        roles = self._folder / "roles.sql"
        roles.write_text("CREATE ROLE execution_plane LOGIN;\n")
        single = await self._run("postgres", "--single", "-D", cluster, "postgres", stdin=roles)
        assert await single.wait(60) == 0, self._log_file.read_text()
        await single.stop()
        self._server = await self._run(
            "postgres",
            *("-D", cluster, "-p", str(self._port)),
            *(f"--listen_addresses={LOOPBACK}", "--unix_socket_directories=", "--fsync=off"),
        )
        pid_file = cluster / "postmaster.pid"
        while await self._server.wait(0.01) is None:
            lines = pid_file.read_text().splitlines() if pid_file.exists() else []
            if lines[7:] and lines[7].strip() == "ready":
                return
        raise AssertionError(self._log_file.read_text())

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    async def _run(self, name: str, *arguments: object, stdin: Path | None = None) -> Guarded:
        return await Guarded.start(
            [PROGRAMS / name, *(str(argument) for argument in arguments)],
            log_file=self._log_file,
            env=clean_environment(),
            stop_signal=signal.SIGINT,
            as_nobody=[self._folder],
            stdin=stdin,
        )
