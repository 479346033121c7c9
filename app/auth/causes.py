"""Why a caller was refused: a closed list, fit for a metric's label and never shown to callers."""

from __future__ import annotations

from typing import Final, Literal, get_args

from app.domain.errors import Forbidden, Unauthenticated

UnauthenticatedCause = Literal[
    "no-token",
    "two-headers",
    "malformed",
    "signature-removed-by-platform",
    "issuer",
    "algorithm",
    "key-id",
    "unknown-key",
    "signature",
    "expired",
    "not-yet-valid",
    "lifetime",
    "audience",
    "no-account",
]
ForbiddenCause = Literal["email-not-verified", "account", "role"]

UNAUTHENTICATED_CAUSES: Final[frozenset[str]] = frozenset(get_args(UnauthenticatedCause))
FORBIDDEN_CAUSES: Final[frozenset[str]] = frozenset(get_args(ForbiddenCause))


def unauthenticated(cause: UnauthenticatedCause, *, token_sent: bool = True) -> Unauthenticated:
    """The refusal of a caller whom we do not know; it carries nothing of what was sent."""
    return Unauthenticated(cause, token_sent=token_sent)


def forbidden(cause: ForbiddenCause) -> Forbidden:
    """The refusal of a caller whom we know; `context["cause"]` is for logs and metrics."""
    return Forbidden(cause=cause)
