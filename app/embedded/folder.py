"""The folder of one embedded part: its lock and its remembered secrets."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.embedded.failure import PartFailed


class FolderLock:
    """At most one process uses a folder. The kernel drops the lock however the process ends."""

    def __init__(self, folder: Path, part: str) -> None:
        self._path = folder / "lock"
        self._part = part
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or raise `PartFailed` naming the process that has it."""
        if not self.try_acquire():
            pid = self.holder()
            raise PartFailed(
                self._part,
                f"{self._path.parent} is in use by {f'process {pid}' if pid else 'a process'}.",
                mend="stop that process, or use another folder",
            )

    def try_acquire(self) -> bool:
        """Take the lock; False when another process has it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor
        return True

    def is_taken(self) -> bool:
        """Whether any process has the lock now."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def holder(self) -> str:
        """The pid that the last holder wrote down."""
        with suppress(OSError):
            return self._path.read_text().strip()
        return ""

    @property
    def held(self) -> bool:
        """Whether this object has the lock."""
        return self._descriptor is not None

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_memory(path: Path) -> dict[str, Any]:
    """What `write_memory` stored; empty when there is nothing readable."""
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        if isinstance(found, dict):
            return found
    return {}


def write_memory(path: Path, values: dict[str, Any]) -> None:
    """Store values for the next start, readable by the owner only, whole or not at all."""
    write_private(path, json.dumps(values, indent=1) + "\n")


def write_private(path: Path, text: str | bytes) -> None:
    """Write a file with mode 0600, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode() if isinstance(text, str) else text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
