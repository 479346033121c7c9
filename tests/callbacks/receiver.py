"""A receiver of callbacks, written with the Standard Webhooks library, on a real port."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.embedded.serving import LoopbackServer

Answering = Callable[["Got"], int | Response]


@dataclass
class Got:
    """One request that came."""

    headers: dict[str, str]
    body: bytes
    status: int = 0
    path: str = "/"

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.json.get("events", [self.json])

    def is_genuine(self, secret: str) -> bool:
        try:
            Webhook(secret).verify(self.body, self.headers)
        except WebhookVerificationError:
            return False
        return True


@dataclass
class Receiver:
    """Takes everything with 204, unless `answering` says otherwise."""

    answering: Answering = lambda _: 204
    requests: list[Got] = field(default_factory=list)
    server: LoopbackServer | None = None
    port: int = 0

    async def start(self, tls: Any = None) -> "Receiver":
        app = Starlette(routes=[Route("/{path:path}", self._take, methods=["POST"])])
        self.server = LoopbackServer(app, port=self.port, tls=tls)
        self.port = self.server.port
        await self.server.start()
        return self

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop()
            self.server = None

    @property
    def url(self) -> str:
        assert self.server is not None
        return f"{self.server.url}/callbacks"

    async def _take(self, request: Request) -> Response:
        got = Got(dict(request.headers), await request.body(), path=request.url.path)
        said = self.answering(got)
        answer = said if isinstance(said, Response) else Response("", said)
        got.status = answer.status_code
        self.requests.append(got)
        return answer

    # --- what came -------------------------------------------------------------------------------

    @property
    def taken(self) -> list[dict[str, Any]]:
        """The events of all requests that were accepted, in the order of their arrival."""
        return [event for got in self.requests if got.status // 100 == 2 for event in got.events]

    def first_arrivals(self) -> list[dict[str, Any]]:
        seen: set[str] = set()
        found = []
        for event in self.taken:
            if event["id"] not in seen:
                seen.add(event["id"])
                found.append(event)
        return found

    def numbers(self, attempt_id: str) -> list[int]:
        """The event numbers of one attempt, as they arrived."""
        return [one["event_number"] for one in self.taken if one["attempt_id"] == attempt_id]

    def types(self) -> Counter[str]:
        return Counter(event["type"] for event in self.taken)

    def assert_in_order(self) -> None:
        """First arrivals of every attempt are in order; repeats are equal to the byte."""
        last: dict[str, int] = {}
        for event in self.first_arrivals():
            assert event["event_number"] > last.get(event["attempt_id"], 0), event
            last[event["attempt_id"]] = event["event_number"]
        bodies: dict[str, str] = {}
        for event in self.taken:
            text = json.dumps(event)
            assert bodies.setdefault(event["id"], text) == text
