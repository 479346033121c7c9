"""Publishing to Pub/Sub topics over Google's REST API, with the service's own identity.

The token is Google's application default: the platform's service account, a federated identity or
a key file. It is fetched in a thread and kept until it runs out.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from app.domain.errors import PublishFailed
from app.settings import SchedulerSettings

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

_SCOPE = "https://www.googleapis.com/auth/pubsub"
_MAX_MESSAGES = 1000
_MAX_BYTES = 6 * 1024 * 1024
"""Of data before base64; a request may have 10 MB."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a topic gets."""

    data: bytes
    attributes: Mapping[str, str] = field(default_factory=dict)


class Publisher:
    """Publishes to topics. Repeating is the caller's part: a message may have arrived twice."""

    def __init__(self, settings: SchedulerSettings, http: httpx.AsyncClient) -> None:
        """Nothing is fetched before the first message."""
        self._settings = settings
        self._http = http
        self._tokens = _GoogleTokens() if settings.pubsub_credentials == "google" else None

    async def publish(self, topic: str, messages: Sequence[Message]) -> list[str]:
        """Publish the messages to the topic; return the ids they got, by position.

        Raises PublishFailed; some of them may have been published then.
        """
        ids: list[str] = []
        for batch in _batches(messages):
            ids += await self._publish(topic, batch)
        return ids

    async def _publish(self, topic: str, messages: Sequence[Message]) -> list[str]:
        body = {
            "messages": [
                {"data": base64.b64encode(one.data).decode(), "attributes": dict(one.attributes)}
                for one in messages
            ]
        }
        url = f"{self._settings.pubsub_url.rstrip('/')}/v1/{topic}:publish"
        try:
            headers = (
                {"Authorization": f"Bearer {await self._tokens.get()}"} if self._tokens else {}
            )
            answer = await self._http.post(
                url, json=body, headers=headers, timeout=self._settings.publish_timeout_seconds
            )
        except httpx.HTTPError as error:
            raise PublishFailed(f"The topic cannot be reached ({type(error).__name__}).") from None
        if answer.status_code == httpx.codes.UNAUTHORIZED and self._tokens:
            self._tokens.forget()
        if answer.status_code != httpx.codes.OK:
            raise PublishFailed(f"The topic answered {answer.status_code}.")
        return _ids(answer, len(messages))


def _ids(answer: httpx.Response, expected: int) -> list[str]:
    try:
        ids = [str(one) for one in answer.json()["messageIds"]]
    except (ValueError, KeyError, TypeError):
        ids = []
    if len(ids) != expected:
        raise PublishFailed("The topic's answer does not name the messages.")
    return ids


def _batches(messages: Sequence[Message]) -> list[list[Message]]:
    """The messages in requests of a size that Pub/Sub takes."""
    batches: list[list[Message]] = []
    size = 0
    for message in messages:
        full = batches and (
            len(batches[-1]) == _MAX_MESSAGES or size + len(message.data) > _MAX_BYTES
        )
        if not batches or full:
            batches.append([])
            size = 0
        batches[-1].append(message)
        size += len(message.data)
    return batches


class _GoogleTokens:
    """Access tokens of this process's own identity."""

    def __init__(self) -> None:
        self._credentials: Credentials | None = None
        self._fetching = asyncio.Lock()

    async def get(self) -> str:
        """A token that is valid now. Raises PublishFailed."""
        async with self._fetching:
            if self._credentials is None or not self._credentials.valid:
                self._credentials = await asyncio.to_thread(_fetch, self._credentials)
            return str(self._credentials.token)

    def forget(self) -> None:
        """The token was refused."""
        self._credentials = None


def _fetch(known: Credentials | None) -> Credentials:
    """Credentials with a fresh token."""
    # Imported only when there is something to publish: it takes a while.
    import google.auth  # noqa: PLC0415
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415

    try:
        with httpx.Client(timeout=10) as http:
            transport = _transport(http)
            credentials = known
            if credentials is None:
                credentials, _ = google.auth.default(scopes=[_SCOPE], request=transport)
            credentials.refresh(transport)  # type: ignore[no-untyped-call]
    except (GoogleAuthError, httpx.HTTPError, OSError, ValueError) as error:
        raise PublishFailed(
            f"The service's own identity cannot be had ({type(error).__name__})."
        ) from None
    return credentials


def _transport(http: httpx.Client) -> Any:
    """What google-auth calls to reach the network: the client that this service uses anyway."""
    from google.auth import transport  # noqa: PLC0415
    from google.auth.exceptions import TransportError  # noqa: PLC0415

    class _Response(transport.Response):
        def __init__(self, answer: httpx.Response) -> None:
            self._answer = answer

        @property
        def status(self) -> int:
            return self._answer.status_code

        @property
        def headers(self) -> Mapping[str, str]:
            return self._answer.headers

        @property
        def data(self) -> bytes:
            return self._answer.content

    class _Request(transport.Request):
        def __call__(
            self,
            url: str,
            method: str = "GET",
            body: bytes | None = None,
            headers: Mapping[str, str] | None = None,
            timeout: float | None = None,
            **_: Any,
        ) -> transport.Response:
            try:
                answer = http.request(
                    method, url, content=body, headers=dict(headers or {}), timeout=timeout or 10
                )
            except httpx.HTTPError as error:
                raise TransportError(error) from error  # type: ignore[no-untyped-call]
            return _Response(answer)

    return _Request()
