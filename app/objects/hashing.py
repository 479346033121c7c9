"""Hashes whole objects, streaming; each once at a time in this process, whoever asks for it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

_MOST_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Hashed:
    """The SHA-256 of an object in hex, and its size."""

    sha256: str
    byte_size: int


class Hashing:
    """What is being hashed. One that gives up waiting does not end it; the next one joins in."""

    def __init__(self, read: Callable[[str], AsyncIterator[bytes]]) -> None:
        """`read` gives the bytes of an object in pieces."""
        self._read = read
        self._tasks: dict[str, asyncio.Task[Hashed]] = {}
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)

    async def hash(self, full_key: str, wait_seconds: float) -> Hashed | None:
        """The object's hash, or None when it is not there after `wait_seconds`: ask again.

        Raises ObjectStoreUnavailable. A result is given out once; who asks again hashes again.
        """
        task = self._tasks.get(full_key)
        if task is None:
            task = asyncio.create_task(self._hash(full_key), name=f"hash {full_key}")
            task.add_done_callback(_seen)
            self._tasks[full_key] = task
        done, _ = await asyncio.wait([task], timeout=wait_seconds)
        if not done:
            return None
        if self._tasks.get(full_key) is task:
            del self._tasks[full_key]
        return task.result()

    async def _hash(self, full_key: str) -> Hashed:
        sha256, size = hashlib.sha256(), 0
        async with self._places:
            async for piece in self._read(full_key):
                sha256.update(piece)
                size += len(piece)
        return Hashed(sha256.hexdigest(), size)

    async def stop(self) -> None:
        """Break off what is being hashed."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _seen(task: asyncio.Task[Hashed]) -> None:
    """A failure that nobody waited for is told to whoever asks next, and not by the loop."""
    if not task.cancelled():
        task.exception()
