"""A transport that sends what is written in one turn of the event loop with one system call.

The server underneath writes the head of an answer and its body apart, and each write would be
sent at once: a second system call for us, and a second packet for the client to wake up for.
"""

from __future__ import annotations

import asyncio
from typing import Any

_AT_ONCE = 64 * 1024
"""Bytes that are sent without waiting for the turn's end, so that flow control sees them."""


class Corked:
    """Wraps a transport; whatever is not about writing goes to it unchanged."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """For the running event loop."""
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it at the end of this turn, or now if there is much of it."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)
        self._size += len(data)
        if self._size >= _AT_ONCE:
            self._flush()

    def close(self) -> None:
        """Close when everything is sent."""
        self._flush()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        """Bytes that are not with the kernel yet."""
        return self._size + self._transport.get_write_buffer_size()

    def _flush(self) -> None:
        if self._held:
            held, self._held, self._size = self._held, [], 0
            self._transport.write(b"".join(held))
