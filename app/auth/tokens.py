"""Verification of the identity tokens that all callers carry.

Everything that a signature does not cover is checked here, exactly: algorithm, key id, issuer,
audience, lifetime, clock and account. Only `Authorization` is looked at; headers in which a
platform repeats an identity are not. Neither tokens nor the words of a library about them go into
an error or a log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from app.auth.causes import forbidden, unauthenticated
from app.auth.certificates import CertificateCache
from app.auth.key_source import KeySource
from app.auth.keys import Keys
from app.auth.roles import Identity, audiences_known, identify
from app.auth.token_form import TokenForm, bearer_token, parse
from app.auth.verdicts import Verdict, VerdictCache
from app.domain.errors import SettingsInvalid
from app.settings import GrantSettings, IdentitySettings, IssuerSettings


class TokenVerifier:
    """Verifies tokens against the configured issuers and grants.

    For one event loop. `http` stays the caller's; `close()` ends what was begun with it. The
    clocks are wall time (for the token's claims) and monotonic time (for the age of keys).
    SettingsInvalid if two issuers claim one `iss`.
    """

    def __init__(
        self,
        settings: IdentitySettings,
        http: httpx.AsyncClient,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._verdicts = VerdictCache()
        self._issuers: dict[str, _TrustedIssuer] = {}
        for name in settings.issuers:
            issuer = _TrustedIssuer(name, settings, http, monotonic)
            for spelling in issuer.settings.issuers:
                if self._issuers.setdefault(spelling, issuer) is not issuer:
                    raise SettingsInvalid(
                        [f"identity.issuers: two entries accept iss {spelling!r}"]
                    )

    async def verify(self, authorization_values: Sequence[str]) -> Identity:
        """Who sent a request with these `Authorization` values (all that the request has).

        Unauthenticated if no valid token was sent, Forbidden if a valid one names an account
        without a grant, IdentityUnavailable if the issuer's keys cannot be had. A token that was
        verified before, or whose key is held, is answered without waiting.
        """
        token = bearer_token(authorization_values)
        known = self._verdicts.find(token, self._clock())
        return known or await self._verify_anew(token)

    async def close(self) -> None:
        """End every fetch that is under way."""
        for issuer in set(self._issuers.values()):
            await issuer.certificates.close()

    async def _verify_anew(self, token: str) -> Identity:
        form = parse(token)
        issuer = self._issuer(form.claims.get("iss"))
        if form.algorithm not in issuer.source.algorithms:
            raise unauthenticated("algorithm")
        keys = await issuer.certificates.keys_for(form.key_id)
        _check_signature(form, keys)
        issuer.check_times(form, self._clock())
        identity = issuer.identify(form.claims)
        self._verdicts.keep(token, Verdict(identity, form.expires_at, issuer.certificates, keys))
        return identity

    def _issuer(self, spelling: object) -> _TrustedIssuer:
        issuer = self._issuers.get(spelling) if isinstance(spelling, str) else None
        if issuer is None:
            raise unauthenticated("issuer")
        return issuer


class _TrustedIssuer:
    """One configured issuer: its keys, its grants, and what its tokens must say."""

    def __init__(
        self,
        name: str,
        identity: IdentitySettings,
        http: httpx.AsyncClient,
        monotonic: Callable[[], float],
    ) -> None:
        self.name = name
        self.settings: IssuerSettings = identity.issuers[name]
        self.source = KeySource.of(name, self.settings, identity.certificate_timeout_seconds)
        self.certificates = CertificateCache(
            self.source,
            http,
            max_stale_seconds=identity.certificate_max_stale_seconds,
            cooldown_seconds=identity.certificate_refresh_cooldown_seconds,
            monotonic=monotonic,
        )
        self._grants: tuple[GrantSettings, ...] = identity.grants
        self._audiences = audiences_known(identity.grants, name)
        self._skew_seconds = identity.clock_skew_seconds

    def check_times(self, form: TokenForm, now: float) -> None:
        """Unauthenticated unless the token is valid now and was not issued for too long."""
        lifetime = form.expires_at - form.issued_at
        if not 0 < lifetime <= self.settings.max_lifetime_seconds:
            raise unauthenticated("lifetime")
        valid_from = max(form.issued_at, form.not_before or form.issued_at)
        if valid_from > now + self._skew_seconds:
            raise unauthenticated("not-yet-valid")
        if form.expires_at + self._skew_seconds <= now:
            raise unauthenticated("expired")

    def identify(self, claims: dict[str, Any]) -> Identity:
        """The identity of a token whose signature and times are good."""
        audience = self._audience(claims.get("aud"))
        return identify(self._grants, issuer=self.name, audience=audience, account=_account(claims))

    def _audience(self, claim: object) -> str:
        """The audience, exactly one. Kubernetes writes even one as a list (JWKS issuers only)."""
        if self.source.is_key_set and isinstance(claim, list) and len(claim) == 1:
            claim = claim[0]
        if not isinstance(claim, str) or not claim or claim not in self._audiences:
            raise unauthenticated("audience")
        return claim


def _check_signature(form: TokenForm, keys: Keys) -> None:
    key = keys.get(form.key_id)
    if key is None:
        raise unauthenticated("unknown-key")
    if key.algorithm != form.algorithm:
        raise unauthenticated("algorithm")
    if not key.has_signed(form.text):
        raise unauthenticated("signature")


def _account(claims: dict[str, Any]) -> str:
    """The verified e-mail; `sub` only if there is no e-mail at all."""
    account = claims.get("email") if "email" in claims else claims.get("sub")
    if not isinstance(account, str) or not account:
        raise unauthenticated("no-account")
    if "email" in claims and claims.get("email_verified") is not True:
        raise forbidden("email-not-verified")
    return account
