"""The form of a bearer token, before anything in it is believed.

One token has exactly one accepted spelling: base64url without padding, without foreign characters
and without loose bits at the end. Libraries accept many, and then two texts are the same token.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.auth.causes import unauthenticated

MAX_TOKEN_BYTES: Final = 8 * 1024
MAX_HEADER_BYTES: Final = 1024
MAX_KEY_ID_CHARACTERS: Final = 128

_SEGMENTS: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+){2}")
_STRIPPED_SIGNATURE: Final = "SIGNATURE_REMOVED_BY_GOOGLE"


@dataclass(frozen=True, slots=True)
class TokenForm:
    """A well-formed token whose signature nobody has looked at yet."""

    text: str = field(repr=False)
    algorithm: str
    key_id: str
    claims: dict[str, Any] = field(repr=False)
    issued_at: int
    expires_at: int
    not_before: int | None


def bearer_token(authorization_values: Sequence[str]) -> str:
    """The one bearer token of a request, at most 8 KiB of ASCII; otherwise Unauthenticated.

    Two headers are refused even if equal: a proxy in front may have looked at the other one.
    """
    if len(authorization_values) > 1:
        raise unauthenticated("two-headers")
    if not authorization_values:
        raise unauthenticated("no-token", token_sent=False)
    scheme, _, token = authorization_values[0].partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not token:
        raise unauthenticated("no-token", token_sent=False)
    if len(token) > MAX_TOKEN_BYTES or not token.isascii():
        raise unauthenticated("malformed")
    return token


def parse(token: str) -> TokenForm:
    """Take a token apart; Unauthenticated unless every part has its form and its type."""
    if not _SEGMENTS.fullmatch(token):
        raise unauthenticated("malformed")
    header_part, claims_part, signature_part = token.split(".")
    if signature_part == _STRIPPED_SIGNATURE:
        raise unauthenticated("signature-removed-by-platform")
    if len(header_part) > MAX_HEADER_BYTES or _decoded(signature_part) is None:
        raise unauthenticated("malformed")
    header, claims = _json_object(header_part), _json_object(claims_part)
    if header is None or claims is None or "crit" in header:
        raise unauthenticated("malformed")
    return TokenForm(
        text=token,
        algorithm=_algorithm(header),
        key_id=_key_id(header),
        claims=claims,
        issued_at=_seconds(claims.get("iat")),
        expires_at=_seconds(claims.get("exp")),
        not_before=_seconds(claims["nbf"]) if "nbf" in claims else None,
    )


def _algorithm(header: dict[str, Any]) -> str:
    algorithm = header.get("alg")
    if not isinstance(algorithm, str):
        raise unauthenticated("algorithm")
    return algorithm


def _key_id(header: dict[str, Any]) -> str:
    key_id = header.get("kid")
    if not isinstance(key_id, str) or not 1 <= len(key_id) <= MAX_KEY_ID_CHARACTERS:
        raise unauthenticated("key-id")
    return key_id


def _seconds(value: object) -> int:
    """A whole number of seconds; `True` is none, and neither is a float (it may be NaN)."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise unauthenticated("malformed")
    return value


def _json_object(segment: str) -> dict[str, Any] | None:
    content = _decoded(segment)
    if content is None:
        return None
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _decoded(segment: str) -> bytes | None:
    if len(segment) % 4 == 1:
        return None
    content = base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
    canonical = base64.urlsafe_b64encode(content).rstrip(b"=").decode()
    return content if canonical == segment else None
