"""Tokens of the service's own Google identity, by google-auth: metadata server or key file.

Fetching is blocking and may be slow, so it happens in threads of its own, once for all who ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from google.auth.exceptions import GoogleAuthError

_SCOPE = "https://www.googleapis.com/auth/pubsub"
_THREADS = ThreadPoolExecutor(4, thread_name_prefix="callback-identity")
_SECONDS = 10.0


class IdentityMissing(Exception):
    """There is no identity here, or its tokens cannot be had at the moment."""


class GoogleTokens:
    """Access and identity tokens, each kept until shortly before it expires."""

    def __init__(self) -> None:
        self._credentials: dict[str, Any] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def access_token(self) -> str:
        """A token for Pub/Sub. Raises IdentityMissing."""
        return await self._token("", _access)

    async def identity_token(self, audience: str) -> str:
        """An OIDC token for a receiver that checks this audience. Raises IdentityMissing."""
        return await self._token(audience, lambda request: _identity(request, audience))

    async def _token(self, name: str, make: Callable[[Any], Any]) -> str:
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            credentials = self._credentials.get(name)
            if credentials is None or not credentials.valid:
                credentials = await self._fetched(credentials, make)
                self._credentials[name] = credentials
            return str(credentials.token)

    async def _fetched(self, held: Any, make: Callable[[Any], Any]) -> Any:
        def fetch() -> Any:
            # Imported when wanted, like all of this: few installations ever do.
            from google.auth.transport.requests import Request  # noqa: PLC0415

            request = Request()
            credentials = make(request) if held is None else held
            credentials.refresh(request)
            return credentials

        try:
            async with asyncio.timeout(_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(_THREADS, fetch)
        except (GoogleAuthError, OSError, TimeoutError, ValueError) as error:
            raise IdentityMissing(type(error).__name__) from None


def _access(_: Any) -> Any:
    import google.auth  # noqa: PLC0415

    return google.auth.default(scopes=[_SCOPE])[0]


def _identity(request: Any, audience: str) -> Any:
    from google.oauth2 import id_token  # noqa: PLC0415

    return id_token.fetch_id_token_credentials(audience, request)  # type: ignore[no-untyped-call]
