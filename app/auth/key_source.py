"""One fetch of an issuer's keys: bounded in time and size, and all or nothing."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Final, Literal

import httpx

from app.auth.keys import Algorithm, Keys, read_certificates, read_key_set
from app.settings import IssuerSettings

FetchFailure = Literal["timeout", "connection", "status", "too-large", "no-keys"]

MAX_DOCUMENT_BYTES: Final = 256 * 1024
_DEFAULT_FRESH_SECONDS: Final = 300.0
_LEAST_FRESH_SECONDS: Final = 60.0
_MOST_FRESH_SECONDS: Final = 86_400.0
_MAX_AGE: Final = re.compile(r"(?:^|[,\s])max-age\s*=\s*\"?(\d{1,10})", re.IGNORECASE)


class FetchFailed(Exception):
    """The keys could not be fetched; `cause` is from a closed list."""

    def __init__(self, cause: FetchFailure) -> None:
        super().__init__(cause)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where an issuer publishes its keys, in which form, and what they may be used for."""

    issuer: str
    url: str
    is_key_set: bool
    timeout_seconds: float

    @classmethod
    def of(cls, issuer: str, settings: IssuerSettings, timeout_seconds: float) -> KeySource:
        """The source that the settings of this issuer name."""
        url = settings.jwks_url or settings.certificates_url or ""
        return cls(issuer, url, settings.jwks_url is not None, timeout_seconds)

    @property
    def algorithms(self) -> tuple[Algorithm, ...]:
        """The algorithms that keys from here can have."""
        return ("RS256", "ES256") if self.is_key_set else ("RS256",)

    async def fetch(self, http: httpx.AsyncClient) -> tuple[Keys, float]:
        """The keys, at least one, and the seconds they are fresh for. FetchFailed otherwise."""
        try:
            async with asyncio.timeout(self.timeout_seconds):
                document, fresh_seconds = await self._get(http)
            keys = read_key_set(document) if self.is_key_set else read_certificates(document)
        except (TimeoutError, httpx.TimeoutException):
            cause: FetchFailure = "timeout"
        except FetchFailed as failure:
            cause = failure.cause
        except Exception:  # noqa: BLE001 - any fault here means "keep what you have and try again"
            cause = "connection"
        else:
            if keys:
                return keys, fresh_seconds
            cause = "no-keys"
        raise FetchFailed(cause)

    async def _get(self, http: httpx.AsyncClient) -> tuple[bytes, float]:
        async with http.stream(
            "GET",
            self.url,
            # Without compression, which is not undone here, the size on the wire is that in memory.
            headers={"accept": "application/json", "accept-encoding": "identity"},
            follow_redirects=False,
            timeout=self.timeout_seconds,
        ) as response:
            if response.status_code != httpx.codes.OK:
                raise FetchFailed("status")
            return await _body(response), fresh_seconds(response.headers)


def fresh_seconds(headers: httpx.Headers) -> float:
    """How long an answer is fresh: max-age less Age, held between a minute and a day.

    Whatever an endpoint says, it is not asked again with every request, and not never.
    """
    max_age = _MAX_AGE.search(headers.get("cache-control", ""))
    if max_age is None:
        return _DEFAULT_FRESH_SECONDS
    age = headers.get("age", "")
    left = int(max_age[1]) - (int(age) if re.fullmatch(r"[0-9]{1,10}", age) else 0)
    return min(max(float(left), _LEAST_FRESH_SECONDS), _MOST_FRESH_SECONDS)


async def _body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_DOCUMENT_BYTES:
            raise FetchFailed("too-large")
    return bytes(body)
