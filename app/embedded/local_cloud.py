"""What Google does for the service in production, on one loopback port of the stack's process.

It signs tokens, publishes the keys that they are checked with, takes messages and pushes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION, TOPIC
from app.embedded.issuer import Issuer, issuer_app
from app.embedded.pubsub import LocalPubSub
from app.embedded.serving import LoopbackServer
from app.embedded.tls import TlsFiles

HOSTS = ("localhost", "127.0.0.1")


class LocalCloud:
    """The issuer at `/token` and `/oauth2`, Pub/Sub at `/v1/projects`, its state at `/debug`.

    `start()` answers requests; messages wait until `push_to()` says where the service is. Keys and
    messages that were not delivered are kept in `folder`.
    """

    def __init__(self, folder: Path, issuer: Issuer, tls: TlsFiles, port: int) -> None:
        self.issuer = issuer
        self.pubsub = LocalPubSub(self.issuer.mint, ca_file=tls.ca_file, data_dir=folder / "pubsub")
        self._pushing = False
        self._server = LoopbackServer(_split(issuer_app(self.issuer), self.pubsub.app), port=port)
        self.url = self._server.url

    async def start(self) -> None:
        """Return when requests are answered."""
        self.pubsub.create_topic(TOPIC)
        await self._server.start()

    async def push_to(self, url: str) -> None:
        """Create the service's subscription and begin to push."""
        self.pubsub.create_subscription(
            SUBSCRIPTION,
            TOPIC,
            push_endpoint=url,
            service_account=ACCOUNTS["pubsub"],
            audience=AUDIENCE,
            ack_deadline_seconds=10,
            retry_min_seconds=1,
            retry_max_seconds=60,
        )
        await self.pubsub.start()
        self._pushing = True

    async def stop(self) -> None:
        """Stop pushing, then answering."""
        if self._pushing:
            await self.pubsub.stop()
            self._pushing = False
        await self._server.stop()


def _split(issuer: ASGIApp, pubsub: Any) -> ASGIApp:
    """One app of both; no web page gets in through a name that it points at this machine."""
    guarded = TrustedHostMiddleware(pubsub, allowed_hosts=list(HOSTS), www_redirect=False)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        chosen = guarded if scope["path"].startswith(("/v1/", "/debug/")) else issuer
        await chosen(scope, receive, send)

    return app
