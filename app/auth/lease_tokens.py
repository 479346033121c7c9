"""Lease tokens: derived, never stored. The database holds only a token's hash and its key's id."""

from __future__ import annotations

import base64
import hashlib
from uuid import UUID

from app.domain.keys import KeyRing

_PURPOSE = "lease-token"


def token_of(keys: KeyRing, lease_id: UUID, key_id: str | None = None) -> str:
    """The token of a lease, the same every time. Raises KeyRetired without its key."""
    mac = keys.mac(_PURPOSE, lease_id.bytes, key_id)
    return "lt_" + base64.urlsafe_b64encode(mac).decode().rstrip("=")


def hash_of(token: str) -> str:
    """What the database holds of a token, and what every fence compares."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()
