"""Verdicts already reached: publishers and runners send one token with many requests."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from app.auth.certificates import CertificateCache
from app.auth.keys import Keys
from app.auth.roles import Identity

MAX_VERDICTS: Final = 1024


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one token proved, until it expires or its issuer's keys change."""

    identity: Identity
    expires_at: int
    certificates: CertificateCache
    keys: Keys

    def holds(self, now: float) -> bool:
        """Whether it may still be relied on."""
        return now < self.expires_at and self.certificates.current() is self.keys


class VerdictCache:
    """At most 1,024 verdicts by the SHA-256 of the token; the oldest goes first.

    Refusals are never kept: there is no end of bad tokens, and a good one must not be refused for
    what was true a moment ago. The tokens themselves are not kept either.
    """

    def __init__(self) -> None:
        self._verdicts: dict[bytes, Verdict] = {}

    def __len__(self) -> int:
        return len(self._verdicts)

    def find(self, token: str, now: float) -> Identity | None:
        """The identity that exactly this token has proved, if that still holds."""
        verdict = self._verdicts.get(sha256(token.encode()).digest())
        return verdict.identity if verdict is not None and verdict.holds(now) else None

    def keep(self, token: str, verdict: Verdict) -> None:
        """Remember a token that passed every check."""
        digest = sha256(token.encode()).digest()
        self._verdicts.pop(digest, None)
        if len(self._verdicts) >= MAX_VERDICTS:
            del self._verdicts[next(iter(self._verdicts))]
        self._verdicts[digest] = verdict
