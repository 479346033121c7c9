"""One script as a process group: it can be ended as a whole, and it never outlives its runner."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import suppress
from subprocess import DEVNULL, PIPE

GRACE_SECONDS = 10.0  # from SIGTERM to SIGKILL
# The group's first process. It kills the group when the runner is gone, kill -9 included: the
# kernel then closes the runner's end of the pipe.
GUARD = 'trap "" TERM INT HUP; read -r _; kill -KILL 0'


class Work:
    """One running script. `ended_by` says who ended it, empty while nobody has."""

    def __init__(self, script: str, folder: str, attempt_id: str) -> None:
        """Begin; OSError when it cannot be begun, and then nothing runs."""
        self.ended_by = ""
        self._lock = threading.RLock()  # a signal handler may come in between
        self._guard: subprocess.Popen[bytes] | None = subprocess.Popen(  # noqa: S603
            ["sh", "-c", GUARD],  # noqa: S607
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=DEVNULL,
            process_group=0,
        )
        self._group = self._guard.pid
        try:
            self.process = subprocess.Popen(  # noqa: S603  running what it is given is its purpose
                ["bash", "-c", script],  # noqa: S607
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                cwd=folder,
                env={**os.environ, "EXECUTION_PLANE_ATTEMPT_ID": attempt_id},
                process_group=self._group,
            )
        except BaseException:
            self._end_group()
            raise

    def end(self, by: str, grace_seconds: float = GRACE_SECONDS) -> None:
        """SIGTERM to the group, SIGKILL after the grace. The first reason given counts."""
        self.ended_by = self.ended_by or by
        self._send(signal.SIGTERM)
        killer = threading.Timer(grace_seconds, self._send, [signal.SIGKILL])
        killer.daemon = True
        killer.start()

    def wait(self, seconds: float) -> int:
        """The exit code as a shell tells it; after so many seconds the script is ended.

        What the script has left running is ended with it.
        """
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end("timed_out")
            code = self.process.wait()
        self._end_group()
        return 128 - code if code < 0 else code

    def _send(self, number: signal.Signals) -> None:
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if self._guard is not None:  # as long as it lives, the group's number is not reused
                os.killpg(self._group, number)

    def _end_group(self) -> None:
        self._send(signal.SIGKILL)
        with self._lock:
            guard, self._guard = self._guard, None
        if guard is not None:
            guard.wait()
