"""Publishing to a Pub/Sub topic by its REST API, as Google's and the embedded one speak it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from app.callbacks.exchange import Answer, Exchange
from app.callbacks.google import GoogleTokens, IdentityMissing
from app.domain.callbacks import Result

MAX_MESSAGES = 1000


@dataclass(frozen=True, slots=True)
class Message:
    """One message; those with equal ordering keys keep their order."""

    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str = ""


class Publisher:
    """Publishes to the topics of one endpoint."""

    def __init__(self, endpoint: str, exchange: Exchange, tokens: GoogleTokens | None) -> None:
        """Without `tokens` nothing proves who publishes: for the embedded Pub/Sub alone."""
        self._endpoint = endpoint.rstrip("/")
        self._exchange = exchange
        self._tokens = tokens

    async def publish(self, topic: str, messages: Sequence[Message], seconds: float) -> Answer:
        """Publish all of them in one request, or none. It never raises: the answer says it all."""
        headers = {"content-type": "application/json"}
        if self._tokens is not None:
            try:
                headers["authorization"] = f"Bearer {await self._tokens.access_token()}"
            except IdentityMissing as error:
                return Answer(Result.NO_IDENTITY, detail=str(error))
        url = f"{self._endpoint}/v1/{topic}:publish"
        return await self._exchange.post(url, headers, orjson.dumps(_body(messages)), seconds)


def _body(messages: Sequence[Message]) -> dict[str, object]:
    return {
        "messages": [
            {
                "data": base64.b64encode(message.data).decode(),
                "attributes": dict(message.attributes),
                "orderingKey": message.ordering_key,
            }
            for message in messages
        ]
    }
