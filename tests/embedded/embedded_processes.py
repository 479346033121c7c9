"""How the tests here start things in processes of their own, and see that they are gone."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start_python(program: str, *args: object) -> subprocess.Popen:
    """A Python process that can import the application."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, args)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that only waits to be collected does not count."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_gone(*pids: int, seconds: float = 15) -> None:
    """Return when none of the processes is left; fail with those that are."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)
