"""A child process that cannot outlive this one. See `watchdog` for how."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from app.embedded import watchdog


class Guarded:
    """One running command under its own watchdog, in its own session (Ctrl-C does not reach it).

    `pid` is the command's; `stop()` may be called any number of times.
    """

    def __init__(self, process: subprocess.Popen[bytes], pid: int) -> None:
        self._process = process
        self.pid = pid

    @classmethod
    async def start(
        cls,
        argv: Sequence[str | Path],
        *,
        log_file: Path,
        env: Mapping[str, str],
        stop_signal: signal.Signals = signal.SIGTERM,
        grace_seconds: float = 10.0,
        cwd: Path | None = None,
        stdin: Path | None = None,
        as_nobody: Sequence[Path] | None = None,
        namespace: bool = True,
    ) -> Self:
        """Start the command; its output is appended to `log_file`.

        `as_nobody`: when this process is root, run the command as somebody else who owns these
        folders. An ordinary user's command runs as that user either way.
        """
        plan = json.dumps(
            {
                "argv": [str(part) for part in argv],
                "stop_signal": int(stop_signal),
                "grace_seconds": grace_seconds,
                "stdin": str(stdin) if stdin else None,
                "as_nobody": [str(p) for p in as_nobody] if as_nobody is not None else None,
                "namespace": namespace,
            }
        )
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab", buffering=0) as log:
            process = subprocess.Popen(  # noqa: ASYNC220, S603  fork and exec; the argv is ours
                [sys.executable, "-I", "-S", watchdog.__file__, plan],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
        if process.stdout is None:  # pragma: no cover  for the type checker
            raise RuntimeError("no pipe")
        with process.stdout as first:
            line = await asyncio.to_thread(first.readline)
        return cls(process, int(line or 0))

    @property
    def returncode(self) -> int | None:
        """The command's exit status, None while it runs."""
        return self._process.poll()

    async def wait(self, timeout_seconds: float) -> int | None:
        """The exit status, or None when the command still runs after the time given."""
        deadline = time.monotonic() + timeout_seconds
        while self.returncode is None and time.monotonic() < deadline:  # noqa: ASYNC110  a process
            await asyncio.sleep(0.005)
        return self.returncode

    async def stop(self) -> int:
        """Order the command to stop and wait for its end (SIGKILL after its grace)."""
        self._release()
        while (code := await self.wait(60)) is None:
            self._process.kill()
        return code

    def kill(self) -> None:
        """Kill the command at once; the watchdog ends by itself."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._release()

    def _release(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def begin_log(path: Path) -> None:
    """Set the log of the previous run aside: what a log says is then about this run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.replace(path.with_name(path.name + ".1"))


def clean_environment(**values: str) -> dict[str, str]:
    """An environment with nothing of the caller's but PATH: a stray PGPORT must not matter."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC", **values}


def command_of(pid: int) -> str | None:
    """The command line of a live process, None when there is none (or it may not be seen)."""
    if watchdog.HAS_PROC:
        try:
            raw = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None
        return raw.replace(b"\0", b" ").decode(errors="replace").strip() or None
    found = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


async def end_leftover(
    pid: int, marker: str, stop_signal: signal.Signals, *, grace_seconds: float = 10.0
) -> bool:
    """Stop a process that an earlier run left behind, if its command line names `marker`.

    Answers whether there was such a process. One whose command line does not fit is somebody
    else's (pids are reused) and is left alone.
    """
    if marker not in (command_of(pid) or ""):
        return False
    deadline = time.monotonic() + grace_seconds
    watchdog.send(pid, stop_signal)
    while marker in (command_of(pid) or ""):
        if time.monotonic() > deadline:
            watchdog.send(pid, signal.SIGKILL)
        await asyncio.sleep(0.01)
    return True
