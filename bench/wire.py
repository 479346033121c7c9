"""A load generator that costs little: HTTP/1.1 over kept connections, requests written by hand.

It speaks to servers of this machine only, one request at a time a connection. What it does not do:
redirects, chunked answers, TLS, pipelining.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import orjson

Times = dict[str, list[float]]


@dataclass
class Answered:
    """What came back."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body, parsed."""
        return orjson.loads(self.body)


@dataclass
class Wire:
    """One connection. `times` collects milliseconds by the name that a request is given."""

    url: str
    token: str = ""
    times: Times = field(default_factory=lambda: defaultdict(list))
    content_type: str = "application/json"

    async def open(self) -> Wire:
        """Connect to a server of this machine."""
        parts = urlsplit(self.url)
        assert parts.hostname in {"127.0.0.1", "::1", "localhost"}, "only to this machine"
        self._reader, self._writer = await asyncio.open_connection(parts.hostname, parts.port)
        self._head = (
            f"HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: {self.content_type}\r\n"
            f"Authorization: Bearer {self.token}\r\n"
        )
        return self

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def call(
        self, name: str, method: str, path: str, body: Any = None, lease_token: str = ""
    ) -> Answered:
        """One request, its body as JSON or the bytes given; AssertionError unless it gets 2xx.

        A connection that the server closed while it was idle is made anew.
        """
        if self._reader.at_eof():
            await self.open()
        content = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        proof = f"Lease-Token: {lease_token}\r\n" if lease_token else ""
        head = f"{method} {path} {self._head}{proof}Content-Length: {len(content)}\r\n\r\n"
        began = perf_counter()
        self._writer.write(head.encode() + content)
        answered = await self._read()
        self.times[name].append((perf_counter() - began) * 1000)
        assert str(answered.status)[0] == "2", (name, answered.status, answered.body[:300])
        return answered

    async def _read(self) -> Answered:
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        at = head.lower().find(b"content-length:")
        size = int(head[at + 15 : head.index(b"\r\n", at)]) if at >= 0 else 0
        return Answered(status, await self._reader.readexactly(size) if size else b"")


def percentile(times: list[float], share: float) -> float:
    """The value below which this share of the times lies."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def spread(times: list[float]) -> str:
    """p50, p95 and p99, as columns of a table; nothing where nothing was timed."""
    if not times:
        return " " * 24
    return "".join(f"{percentile(times, share):>8.1f}" for share in (0.5, 0.95, 0.99))
