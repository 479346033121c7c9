"""Standard Webhooks: secrets that are derived and stored nowhere, and headers made by its library.

A secret is an HMAC over the subscription's id and the secret's version under the server key whose
id is stored. So nobody who reads the database can sign, and a repeat of a rotation shows the same.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from standardwebhooks.webhooks import Webhook

from app.domain.keys import KeyRing

_PURPOSE = "callback-signing-secret"


@dataclass(frozen=True, slots=True)
class SecretVersion:
    """What a signing secret is derived from."""

    version: int
    key_id: str


def secret_of(keys: KeyRing, subscription_id: UUID, named: SecretVersion) -> str:
    """The secret as receivers keep it, `whsec_…`. Raises KeyRetired without its key."""
    message = subscription_id.bytes + named.version.to_bytes(8)
    return "whsec_" + base64.b64encode(keys.mac(_PURPOSE, message, named.key_id)).decode()


def signed_headers(secrets: Sequence[str], webhook_id: str, body: bytes) -> dict[str, str]:
    """The three headers, with one signature for every secret that is valid now."""
    now = datetime.now(UTC)
    text = body.decode()
    signatures = [Webhook(secret).sign(webhook_id, now, text) for secret in secrets]
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
