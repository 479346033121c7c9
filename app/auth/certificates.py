"""The keys of one issuer, fetched over HTTP and kept.

- A key that is held and fresh costs no wait. Stale keys serve on, while one task beside the
  requests fetches anew.
- There is at most one fetch at a time, whoever asks for it, and each is bounded in time and size.
- A failed fetch never costs good keys, until they are `certificate_max_stale_seconds` too old;
  failures are followed by pauses of 1 to 30 s, however many requests come.
- An unknown key id causes a fetch only if the last one is a cool-down ago, so all unknown ids
  together cause at most one in that time.

Nothing runs by itself: a fetch begins only in a request, since some platforms give a process no
time between two of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httpx
import structlog

from app.auth.key_source import FetchFailed, KeySource
from app.auth.keys import Keys
from app.domain.errors import IdentityUnavailable

_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_MAX_WAITING_FOR_UNKNOWN_KEYS: Final = 32

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Held:
    keys: Keys
    fresh_until: float
    usable_until: float


class CertificateCache:
    """The verification keys of one issuer. For one event loop; `close()` it at the end."""

    def __init__(
        self,
        source: KeySource,
        http: httpx.AsyncClient,
        *,
        max_stale_seconds: float,
        cooldown_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._http = http
        self._max_stale_seconds = max_stale_seconds
        self._cooldown_seconds = cooldown_seconds
        self._monotonic = monotonic
        self._held: _Held | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._failures = 0
        self._started_at = float("-inf")
        self._retry_at = float("-inf")
        self._waiting_for_unknown_keys = 0

    def current(self) -> Keys | None:
        """The usable keys, at once, or None. Stale ones begin a fetch beside the request.

        The same object is returned until the issuer's keys really change.
        """
        now = self._monotonic()
        if self._held is None or now >= self._held.usable_until:
            return None
        if now >= self._held.fresh_until:
            self._begin_fetch(now)
        return self._held.keys

    async def keys_for(self, key_id: str) -> Keys:
        """The usable keys, with `key_id` among them if the issuer is known to publish it.

        Waits for the network only if there are no usable keys, or if `key_id` is unknown and a
        fetch is due or under way. IdentityUnavailable if there are no usable keys.
        """
        keys = self.current()
        if keys is None:
            await self._fetched()
        elif key_id not in keys and self._is_worth_a_fetch():
            await self._fetched_for_unknown_key()
        keys = self.current()
        if keys is None:
            raise IdentityUnavailable
        return keys

    async def close(self) -> None:
        """End a fetch that is under way, and wait until it has ended."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    def _is_worth_a_fetch(self) -> bool:
        if self._is_fetching():
            # A flood of invented ids must not pile up behind a slow endpoint.
            return self._waiting_for_unknown_keys < _MAX_WAITING_FOR_UNKNOWN_KEYS
        return self._monotonic() - self._started_at >= self._cooldown_seconds

    async def _fetched_for_unknown_key(self) -> None:
        self._waiting_for_unknown_keys += 1
        try:
            await self._fetched()
        finally:
            self._waiting_for_unknown_keys -= 1

    async def _fetched(self) -> None:
        """Wait for the one fetch, unless a failure is too recent to begin another."""
        self._begin_fetch(self._monotonic())
        if self._fetching is not None:
            # wait() neither passes on this request's cancellation nor the fetch's own.
            await asyncio.wait({self._fetching})

    def _is_fetching(self) -> bool:
        return self._fetching is not None and not self._fetching.done()

    def _begin_fetch(self, now: float) -> None:
        if not self._is_fetching() and now >= self._retry_at:
            self._started_at = now
            self._fetching = asyncio.create_task(self._fetch(), name="certificates.fetch")

    async def _fetch(self) -> None:
        try:
            keys, fresh_seconds = await self._source.fetch(self._http)
        except FetchFailed as failure:
            self._note_failure(failure.cause)
        else:
            self._keep(keys, fresh_seconds)

    def _keep(self, keys: Keys, fresh_seconds: float) -> None:
        if self._held is not None and self._held.keys == keys:
            keys = self._held.keys
        fresh_until = self._monotonic() + fresh_seconds
        self._held = _Held(keys, fresh_until, fresh_until + self._max_stale_seconds)
        self._failures = 0
        self._retry_at = float("-inf")

    def _note_failure(self, cause: str) -> None:
        pause = min(_FIRST_PAUSE_SECONDS * 2**self._failures, _LONGEST_PAUSE_SECONDS)
        self._failures = min(self._failures + 1, 10)
        self._retry_at = self._monotonic() + pause
        _log.warning(
            "certificates-not-fetched",
            issuer=self._source.issuer,
            cause=cause,
            retry_after_seconds=pause,
            keys_in_use=len(self._held.keys) if self._held else 0,
        )
