"""The demonstration's runner: the program in `demo/`, as a child process like any other runner."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.embedded.demo_job import JOB_TYPE
from app.embedded.environment import ROOT
from app.embedded.failure import PartFailed
from app.embedded.folder import write_private
from app.embedded.guarded import Guarded, begin_log, clean_environment

PROGRAM = ROOT / "demo" / "runner.py"
# Neither the service's code nor any installed package is there for it: it is plain Python.
BARE = ("-S", "-E", "-s")
GRACE_SECONDS = 20.0
AT_ONCE_SECONDS = 3.0


class DemoRunner:
    """One runner process; it ends with this one. It knows the service's address and its token."""

    def __init__(self, state: dict[str, Any], zone: str) -> None:
        self.id = f"demo-runner-{secrets.token_hex(2)}"
        self.log_file = Path(state["home"]) / "log" / "demo-runner.log"
        self._state, self._zone = state, zone
        self._token_file = Path(state["home"]) / f"{self.id}.token"
        self._process: Guarded | None = None

    async def start(self, token: str) -> None:
        """Start it; PartFailed where its program is not there."""
        if not PROGRAM.exists():
            raise PartFailed("runner", f"{PROGRAM} is missing.", mend="run this in a checkout")
        write_private(self._token_file, token)
        begin_log(self.log_file)
        place = ("--url", self._state["api_url"], "--ca", self._state["ca_file"])
        itself = ("--id", self.id, "--kind", "ssh", "--capability", JOB_TYPE, "--zone", self._zone)
        self._process = await Guarded.start(
            [sys.executable, *BARE, PROGRAM, *place, *itself, "--token-file", self._token_file],
            log_file=self.log_file,
            env=clean_environment(HOME=os.environ.get("HOME", "/")),
            grace_seconds=GRACE_SECONDS,
        )

    def check(self) -> None:
        """Raise PartFailed when it has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            sentence = f"ended with status {self._process.returncode}."
            raise PartFailed("runner", sentence, log_file=self.log_file)

    def kill(self) -> None:
        """Kill it, so that it can say nothing more."""
        if self._process is not None:
            self._process.kill()

    async def stop(self, *, at_once: bool = False) -> None:
        """End it. Work that it has taken in the meantime is finished first, unless `at_once`."""
        process, self._process = self._process, None
        if process is not None:
            if at_once and process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)  # the second one comes with stop()
            stopping = asyncio.ensure_future(process.stop())
            if at_once and await process.wait(AT_ONCE_SECONDS) is None:
                process.kill()
            await stopping
        self._token_file.unlink(missing_ok=True)
