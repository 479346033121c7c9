"""Many HTTP requests at once from one process, without a pool that slows down with their number."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx

KEEPALIVE_SECONDS = 3.0  # below the 5 s after which servers commonly hang up


class Sender:
    """Posts over kept connections; it keeps no cookies, follows no redirect, knows no proxy.

    httpx searches its whole pool for every request, which at 3,000 in flight takes longer than a
    push may. So each request in flight has a transport of its own, and idle ones are kept in a
    list.
    """

    def __init__(self, ca_file: Path | None = None) -> None:
        self._trust = ssl.create_default_context(cafile=ca_file)
        self._limits = httpx.Limits(max_connections=1, keepalive_expiry=KEEPALIVE_SECONDS)
        self._idle: list[httpx.AsyncHTTPTransport] = []

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """The status of the answer, which is read to its end. No time limit; it may be cancelled.

        Raises `httpx.TransportError` where no answer comes.
        """
        transport = self._idle.pop() if self._idle else self._new()
        try:
            request = httpx.Request("POST", url, headers=headers, content=body)
            response = await transport.handle_async_request(request)
            try:
                async for _ in response.aiter_raw():
                    pass
            finally:
                await response.aclose()
            return response.status_code
        finally:
            self._idle.append(transport)

    async def aclose(self) -> None:
        """Close all connections. No request may be in flight."""
        while self._idle:
            await self._idle.pop().aclose()

    def _new(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(verify=self._trust, limits=self._limits, trust_env=False)
