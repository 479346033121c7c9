"""The development stack: every part that the service needs, started together and ended together.

Nothing of it is in the request path: the service is a child process that is told by settings only
where its database, object store and issuer are.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.embedded import environment, objects, postgres
from app.embedded.failure import PartFailed
from app.embedded.folder import read_memory, write_memory, write_private
from app.embedded.home import Home
from app.embedded.objects import EmbeddedObjects
from app.embedded.ports import (
    free_port,
    held_sentence,
    is_free_for_localhost,
    next_free_port,
)
from app.embedded.postgres import EmbeddedPostgres
from app.embedded.report import Report, Style, shown
from app.embedded.service import ServiceProcess

if TYPE_CHECKING:
    from app.embedded.local_cloud import LocalCloud

DEFAULT_PORT = 8443
WATCH_EVERY_SECONDS = 0.25
# Stands in for whatever accompanies a running stack, such as lines about attempts.
WhileRunning = Callable[[dict[str, Any], Report], Awaitable[None]]


async def run_stack(
    root: Path,
    *,
    name: str = "",
    port: int | None = None,
    style: Style = "text",
    while_running: WhileRunning | None = None,
) -> int:
    """Run a stack until Ctrl-C, SIGTERM or the end of one of its parts; the exit status.

    `root` is the data home, `name` a stack of its own in it, `port` that of the service (None: 8443
    or the next free one). 0 after an asked-for stop, 1 when a part failed; either way nothing that
    was started here is left. `while_running` runs beside it and is cancelled at the end.
    """
    begun = time.monotonic()
    report = Report(style=style)
    report.title(environment.version())
    stop = _stop_on_signals()
    stack: Stack | None = None
    try:
        stack = Stack(Home(root, name), report, port)
        if not await _unless(stop, stack.start()):
            return 0
        seconds = time.monotonic() - begun
        public = {name: value for name, value in stack.state.items() if name != "database_url"}
        report.ready(public, stack.sentence(seconds), stack.rows())
        beside = while_running(stack.state, report) if while_running else asyncio.sleep(0)
        await _unless(stop, stack.watch(beside))
    except PartFailed as failed:
        report.failure(failed)
        return 1
    except Exception as error:  # noqa: BLE001  a mistake of ours: no traceback in a person's face
        report.failure(_unforeseen(error, stack))
        return 1
    finally:
        if stack is not None:
            await _end(stack, report, asked=stop.is_set())
    return 0


def _unforeseen(error: Exception, stack: Stack | None) -> PartFailed:
    """A sentence for an error that nobody foresaw; its traceback goes into a log."""
    sentence = f"{type(error).__name__}: {error}".splitlines()[0]
    if stack is None:
        return PartFailed("stack", sentence)
    log_file = stack.home.log("stack")
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log_file.write_text("".join(traceback.format_exception(error)))
    return PartFailed("stack", sentence, log_file=log_file)


def _stop_on_signals() -> asyncio.Event:
    """An event for Ctrl-C and the usual orders to end."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _unless(stop: asyncio.Event, work: Awaitable[None]) -> bool:
    """Do the work unless told to stop before; whether it was done. Its errors are raised."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    with suppress(asyncio.CancelledError, PartFailed):
        await task
    return False


async def _end(stack: Stack, report: Report, *, asked: bool) -> None:
    begun = time.monotonic()
    if asked:
        report.text("\nStopping what was started here.")
    await stack.stop()
    if asked:
        seconds = time.monotonic() - begun
        report.text(f"Stopped in {seconds:.1f} s. Data stays in {shown(stack.home.path)}.")


class Stack:
    """All parts of one home. `state` describes them for other programs once they run."""

    def __init__(self, home: Home, report: Report, port: int | None) -> None:
        self.home = home
        self.state: dict[str, Any] = {}
        self._report = report
        self._asked_port = port
        self._port = 0
        self._identity_port = 0
        self._taken = False
        self._postgres = EmbeddedPostgres(home.path / "postgres", log_file=home.log("postgres"))
        self._objects = EmbeddedObjects(home.path / "objects", log_file=home.log("objects"))
        self._service = ServiceProcess(home.path / "service.go", home.log("service"))
        self._cloud: LocalCloud | None = None
        self._has_docs = False
        self._given: dict[str, str] = {}
        self._memory_file = home.path / "installation.json"

    async def start(self) -> None:
        """Return when the service is ready and messages are pushed to it."""
        self.home.take()
        self._taken = True
        self.home.clear_state()
        animation = asyncio.create_task(self._report.animate())
        try:
            await self._start_parts()
            await self._start_service()
        finally:
            animation.cancel()
        self.state = self._describe()
        self.home.write_state(self.state)

    async def stop(self) -> None:
        """End all parts, the service first. A part that fails to stop does not save the others."""
        if not self._taken:
            return
        cloud = self._cloud
        await asyncio.gather(
            self._service.stop(), *([cloud.stop()] if cloud else []), return_exceptions=True
        )
        await asyncio.gather(self._postgres.stop(), self._objects.stop(), return_exceptions=True)
        (self.home.path / "service.go").unlink(missing_ok=True)
        self.home.clear_state()
        self.home.give_back()
        self._taken = False

    async def watch(self, beside: Awaitable[None]) -> None:
        """Raise `PartFailed` as soon as a part has ended by itself; `beside` runs meanwhile."""
        companion = asyncio.ensure_future(beside)
        try:
            while True:
                self._raise_ended()
                await asyncio.sleep(WATCH_EVERY_SECONDS)
        finally:
            companion.cancel()
            await asyncio.wait([companion])

    def sentence(self, seconds: float) -> str:
        """The line that says that all is ready."""
        rest = f'Data stays in {shown(self.home.path)} until "make clean".'
        return f"Ready in {seconds:.1f} s. {rest}"

    def rows(self) -> Sequence[Sequence[str]]:
        """What runs where, and what a person may do next."""
        state, cli = self.state, ".venv/bin/execution-plane"
        make = f"make {{}} NAME={self.home.name}" if self.home.name else "make {}"
        option = f" --name {self.home.name}" if self.home.name else ""
        return (
            ("API", f"{state['api_url']}/v1", f"CA: {shown(Path(state['ca_file']))}"),
            *([("Docs", state["docs_url"])] if self._has_docs else []),
            ("Push", state["push_url"], "for signed messages"),
            ("Publish", f"{state['pubsub_url']}/{environment.TOPIC}:publish"),
            ("Token", f"{cli} dev token{option} --role operator"),
            ("Shell", f". {shown(self.home.environment_file)}", "the service's settings"),
            (),
            ("Next", make.format("demo"), "one job, message to proof"),
            ("Stop", "Ctrl-C", "all that was started here"),
            (),
        )

    async def _start_parts(self) -> None:
        """Start all that do not need each other side by side; the slowest decides."""
        self._port = self._choose_port()
        await asyncio.gather(
            asyncio.to_thread(self._postgres.prepare), asyncio.to_thread(self._objects.prepare)
        )
        self._identity_port = free_port(self._remembered_port())
        self._given = self._variables()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._service.spawn(self._given))
                group.create_task(self._start_database())
                group.create_task(self._start_objects())
                group.create_task(self._start_cloud())
        except BaseExceptionGroup as failures:
            raise _first(failures) from None

    async def _start_database(self) -> None:
        upgrade = asyncio.create_task(asyncio.to_thread(_import_upgrade))
        what = f"PostgreSQL {postgres.version()}"
        async with self._report.part("database", what, shown(self._postgres.data_dir)):
            await self._postgres.start()
        async with self._report.part("migrations", "none to apply") as texts:
            run = await upgrade
            try:
                applied = await asyncio.to_thread(run, self._postgres.dsn)
            except Exception as error:
                raise PartFailed(
                    "migrations",
                    f"{type(error).__name__}: {error}".splitlines()[0],
                    mend="make clean",
                    log_file=self._postgres.log_file,
                ) from error
            if applied:
                texts.append(f"{applied} applied")

    async def _start_objects(self) -> None:
        what = f"S3 (SeaweedFS {objects.version()})"
        async with self._report.part("objects", what, shown(self._objects.data_dir)):
            await self._objects.start()

    async def _start_cloud(self) -> None:
        what = "certificates, token issuer"
        async with self._report.part("identity", what, shown(self.home.path / "tls")):
            make = await asyncio.to_thread(_cloud_maker, self.home.path)
            self._cloud = make(self._identity_port)
            await self._cloud.start()
            write_memory(self._memory_file, {"identity_port": self._identity_port})

    async def _start_service(self) -> None:
        variables = self._variables()
        ca_file = self.home.path / "tls" / "ca.pem"
        since = self._service.spawned_at
        async with self._report.part("service", f"1 process, port {self._port}", since=since):
            write_private(self.home.environment_file, environment.as_exports(variables))
            if variables != self._given:  # a port was lost to somebody since
                await self._service.spawn(variables)
            self._service.go()
            await self._service.wait_ready(self._port, ca_file)
            self._has_docs = await self._service.has(self._port, ca_file, "/docs")
        if self._cloud is not None:
            where = shown(self.home.path / "pubsub")
            async with self._report.part("pub/sub", "local publisher", where):
                await self._cloud.push_to(f"https://localhost:{self._port}/push/pubsub")

    def _variables(self) -> dict[str, str]:
        parts = environment.Parts(
            database_url=self._postgres.dsn,
            objects={
                "endpoint_url": self._objects.endpoint_url,
                "region": self._objects.region,
                "bucket": self._objects.bucket,
                "access_key_id": self._objects.access_key_id,
                "secret_access_key": self._objects.secret_access_key,
            },
            issuer=environment.ISSUER,
            issuer_url=f"http://127.0.0.1:{self._identity_port}",
            certificate_file=self.home.path / "tls" / "server.pem",
            key_file=self.home.path / "tls" / "server.key",
            port=self._port,
        )
        keys = environment.server_keys(self.home.path / "keys.json")
        ours = environment.service_environment(parts, keys)
        return ours | environment.passed_on(os.environ, ours)

    def _choose_port(self) -> int:
        """The port asked for, or 8443, or the next free one; a held one's holder is named."""
        wanted = self._asked_port or DEFAULT_PORT
        if is_free_for_localhost(wanted):
            return wanted
        sentence = held_sentence(wanted)
        other = next_free_port(wanted + 1)
        if self._asked_port:
            raise PartFailed("service", f"{sentence}.", mend=f"make run PORT={other}")
        self._report.note("service", f"{sentence}, using {other}")
        return other

    def _remembered_port(self) -> int:
        return int(read_memory(self._memory_file).get("identity_port", 0))

    def _describe(self) -> dict[str, Any]:
        url = f"https://localhost:{self._port}"
        return {
            "pid": os.getpid(),
            "version": environment.version(),
            "home": str(self.home.path),
            "api_url": url,
            "docs_url": f"{url}/docs" if self._has_docs else "",
            "push_url": f"{url}/push/pubsub",
            "ca_file": str(self.home.path / "tls" / "ca.pem"),
            "issuer_url": f"http://127.0.0.1:{self._identity_port}",
            "pubsub_url": f"http://127.0.0.1:{self._identity_port}/v1",
            "topic": environment.TOPIC,
            "subscription": environment.SUBSCRIPTION,
            "audience": environment.AUDIENCE,
            "accounts": environment.ACCOUNTS,
            "environment_file": str(self.home.environment_file),
            "database_url": self._postgres.dsn,
            "objects_url": self._objects.endpoint_url,
            "pids": {
                "database": self._postgres.pid,
                "objects": self._objects.pid,
                "service": self._service.pid,
            },
        }

    def _raise_ended(self) -> None:
        for part, pid in (("database", self._postgres.pid), ("objects", self._objects.pid)):
            if pid is None:
                log = self.home.log("postgres" if part == "database" else part)
                raise PartFailed(part, "ended by itself.", mend="make run", log_file=log)
        if self._service.pid is None:
            raise self._service.failed("ended by itself.")


def _first(failures: BaseException) -> BaseException:
    """The first failure of a group: the others are mostly its consequences."""
    while isinstance(failures, BaseExceptionGroup):
        failures = failures.exceptions[0]
    return failures


def _import_upgrade() -> Callable[[str], int]:
    """The migrations' entry; its imports are slow and meanwhile the database starts."""
    upgrade: Callable[[str], int] = importlib.import_module("app.store.migrate").upgrade
    return upgrade


def _cloud_maker(folder: Path) -> Callable[[int], LocalCloud]:
    """What takes long of issuer and publisher, for a thread: their imports, keys, certificates."""
    from app.embedded.issuer import Issuer  # noqa: PLC0415  see above
    from app.embedded.local_cloud import LocalCloud  # noqa: PLC0415  see above
    from app.embedded.tls import ensure_certificates  # noqa: PLC0415  see above

    tls, issuer = ensure_certificates(folder / "tls"), Issuer(folder / "tls")

    def make(port: int) -> LocalCloud:
        try:
            return LocalCloud(folder, issuer, tls, port)
        except OSError as error:
            raise PartFailed("identity", f"{error}.", mend="make run") from None

    return make
