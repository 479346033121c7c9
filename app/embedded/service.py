"""The service itself as one part of the development stack: a child process, set up as anywhere."""

from __future__ import annotations

import asyncio
import http.client
import os
import ssl
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from app.embedded.environment import ROOT
from app.embedded.failure import PartFailed
from app.embedded.guarded import Guarded, begin_log, clean_environment

PART = "service"
START_TIMEOUT_SECONDS = 30.0
# Above the time that the service gives its running requests.
STOP_GRACE_SECONDS = 10.0


class ServiceProcess:
    """`python -m app serve`, tied to this process, configured by its environment only.

    Its imports take longer than any other part's start. So it is spawned at once and begins to
    serve when `go()` makes the file that it waits for.
    """

    def __init__(self, gate: Path, log_file: Path) -> None:
        self._gate = gate
        self._log_file = log_file
        self._process: Guarded | None = None
        self.spawned_at = 0.0

    @property
    def pid(self) -> int | None:
        """The process id, None while it is not running."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process and running else None

    async def spawn(self, variables: Mapping[str, str]) -> None:
        """Start the process; one that was started before is ended first."""
        await self.stop()
        self._gate.unlink(missing_ok=True)
        self.spawned_at = time.monotonic()
        begin_log(self._log_file)
        self._process = await Guarded.start(
            [sys.executable, "-m", "app", "serve", "--after", self._gate],
            log_file=self._log_file,
            env=clean_environment(HOME=os.environ.get("HOME", "/"), **variables),
            cwd=ROOT,
            grace_seconds=STOP_GRACE_SECONDS,
        )

    def go(self) -> None:
        """Let it serve: everything that it needs is there."""
        self._gate.touch(mode=0o600)

    async def wait_ready(self, port: int, ca_file: Path) -> None:
        """Return when it says that it is ready; `PartFailed` when it ends or takes too long."""
        trust = ssl.create_default_context(cafile=ca_file)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        answer = "no answer"
        while self.pid is not None:
            answer = await asyncio.to_thread(_ask, port, trust, "/readyz")
            if answer == "200":
                return
            if time.monotonic() > deadline:
                raise self.failed(f"not ready after {START_TIMEOUT_SECONDS:.0f} s ({answer}).")
            await asyncio.sleep(0.02)
        raise self.failed("ended while starting.")

    async def has(self, port: int, ca_file: Path, path: str) -> bool:
        """Whether this version of the service has such a page."""
        trust = ssl.create_default_context(cafile=ca_file)
        return await asyncio.to_thread(_ask, port, trust, path) == "200"

    def failed(self, sentence: str) -> PartFailed:
        """A failure of this part, with its log."""
        return PartFailed(PART, sentence, mend="make clean && make run", log_file=self._log_file)

    async def stop(self) -> None:
        """End the process; running requests get their time. May be called repeatedly."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop()


def _ask(port: int, trust: ssl.SSLContext, path: str) -> str:
    """The status that a path answers with, or what is in the way of an answer."""
    connection = http.client.HTTPSConnection("localhost", port, timeout=5, context=trust)
    with closing(connection):
        try:
            connection.request("GET", path)
            return str(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as error:
            return str(error)
