"""One POST and what became of it: bounded in time and size, no redirects, no decompression."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from time import monotonic
from typing import Self

import httpcore

from app.callbacks.guard import AddressRefused, GuardedBackend
from app.domain.callbacks import Result

MAX_ANSWER_BYTES = 16 * 1024
MAX_EXCERPT_BYTES = 1024
MAX_RETRY_AFTER_SECONDS = 3600.0
_KEPT_OPEN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request."""

    result: Result
    status: int | None = None
    seconds: float = 0.0
    retry_after_seconds: float | None = None
    """The pause that the receiver asked for, at most an hour."""
    detail: str = ""
    """From a closed list of words, never the receiver's."""
    excerpt: bytes = b""
    """The beginning of what a receiver said that did not accept; not masked yet."""

    @property
    def accepted(self) -> bool:
        """Whether it need not be sent again."""
        return self.result == Result.DELIVERED


class Exchange:
    """A pool of connections of one target's own, so that no other's trouble can fill it."""

    def __init__(self, backend: GuardedBackend, tls: ssl.SSLContext, max_connections: int) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=_KEPT_OPEN_SECONDS,
            network_backend=backend,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._pool.aclose()

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> Answer:
        """Send it and read the beginning of the answer, all within `seconds`. Never raises."""
        began = monotonic()
        try:
            async with asyncio.timeout(seconds):
                status, answer_headers, excerpt = await self._send(url, headers, body, seconds)
        except Exception as error:  # noqa: BLE001 - whatever a receiver does is an answer
            result, detail = _failure(error)
            return Answer(result, seconds=monotonic() - began, detail=detail)
        took = monotonic() - began
        retry_after = _retry_after(answer_headers.get(b"retry-after"))
        result = _result(status, asks_for_pause=retry_after is not None)
        return Answer(result, status, took, retry_after, excerpt=excerpt)

    async def _send(
        self, url: str, headers: Mapping[str, str], body: bytes, seconds: float
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        limits = {"connect": seconds, "read": seconds, "write": seconds, "pool": seconds}
        fields = [*headers.items(), ("accept-encoding", "identity")]
        async with self._pool.stream(
            "POST",
            url,
            headers=[(name.encode(), value.encode()) for name, value in fields],
            content=body,
            extensions={"timeout": limits},
        ) as response:
            read = bytearray()
            async for piece in response.aiter_stream():
                read += piece
                if len(read) >= MAX_ANSWER_BYTES:
                    break  # leaving the block closes the connection
            found = {name.lower(): value for name, value in response.headers}
            return response.status, found, bytes(read[:MAX_EXCERPT_BYTES])


def _result(status: int, *, asks_for_pause: bool) -> Result:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return Result.DELIVERED
    if status == HTTPStatus.GONE:
        return Result.GONE
    paused = status == HTTPStatus.SERVICE_UNAVAILABLE and asks_for_pause
    return Result.BUSY if paused or status == HTTPStatus.TOO_MANY_REQUESTS else Result.REFUSED


def _failure(error: Exception) -> tuple[Result, str]:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AddressRefused):
            return Result.ADDRESS_REFUSED, ""
        if isinstance(cause, ssl.SSLError):
            detail = getattr(cause, "verify_message", "") or cause.reason or ""
            return Result.CERTIFICATE, detail[:200]
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, (TimeoutError, httpcore.TimeoutException)):
        return Result.TIMED_OUT, ""
    return Result.UNREACHABLE, type(error).__name__


def _retry_after(value: bytes | None) -> float | None:
    """Seconds, at least 1 and at most an hour; for a date, by whose clock ever, one minute."""
    if value is None:
        return None
    text = value.decode("latin-1").strip()
    if text.isascii() and text.isdecimal():
        asked = float(text) if len(text) < 10 else MAX_RETRY_AFTER_SECONDS  # noqa: PLR2004
        return min(max(asked, 1.0), MAX_RETRY_AFTER_SECONDS)
    try:
        parsedate_to_datetime(text)
    except ValueError:
        return None
    return 60.0
