"""An issuer of identity tokens for the laptop and the tests, shaped as Google's.

Its tokens look exactly like those that Google signs for Pub/Sub pushes and service accounts: RS256,
`kid` a SHA-1 in hex, the claims `aud azp email email_verified exp iat iss sub`, an hour of life,
one token for an account and audience until it is nearly used up. Its keys are published as Google
publishes them, so the service's real fetch and check run.

What it does not model: accounts (whoever reaches its loopback port gets a token for any account),
permissions, consent, refresh tokens, user tokens, discovery documents, revocation, and keys that
change by themselves (`rotate()` does it on demand).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from jwt.algorithms import RSAAlgorithm
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from app.embedded.folder import write_private

ISSUER = "https://issuer.localhost"
LIFETIME_SECONDS = 3600
RENEW_SECONDS = 300
# At the same moment: the key before (its tokens still live), the one that signs, the next one.
PUBLISHED_KEYS = 3
CERTIFICATE_DAYS = 3650


class Fault(StrEnum):
    """How the certificate endpoints misbehave, for tests."""

    UNAVAILABLE = "unavailable"
    HTML = "html"
    EMPTY = "empty"
    SLOW = "slow"
    TRUNCATED = "truncated"


@dataclass(frozen=True)
class Token:
    """A signed token and the second at which it ends."""

    id_token: str
    expires_at: int


@dataclass(frozen=True)
class SigningKey:
    """One RSA key with its self-signed certificate."""

    key: rsa.RSAPrivateKey
    certificate: x509.Certificate

    @property
    def kid(self) -> str:
        """The key id: forty hex digits, as Google's."""
        encoded = self.certificate.public_bytes(serialization.Encoding.DER)
        return hashlib.sha1(encoded, usedforsecurity=False).hexdigest()

    @property
    def pem(self) -> str:
        """The certificate in PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def jwk(self) -> dict[str, Any]:
        """The public key as RFC 7517 writes it."""
        public = RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.kid} | {
            name: public[name] for name in ("n", "e")
        }


class Issuer:
    """Mints tokens in this process; `issuer_app` offers them over HTTP.

    With a `folder` the keys outlive the process (readable by their owner only). The second key is
    published but not used yet, so that `rotate()` never signs with a key that nobody could know.
    `clock` gives seconds since 1970. `fault`, `slow_seconds` and `max_age_seconds` are switches of
    the certificate endpoints; `requests` counts what came in, by path.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        issuer: str = ISSUER,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.issuer = issuer
        self.fault: Fault | None = None
        self.slow_seconds = 30.0
        self.max_age_seconds = 21_600
        self.age_seconds = 12
        self.requests: Counter[str] = Counter()
        self._clock = clock
        self._folder = folder
        self._tokens: dict[tuple[str, str], Token] = {}
        self._keys = _read_keys(folder) if folder else []
        self._signing = max(0, len(self._keys) - 2)
        if len(self._keys) < 2:  # noqa: PLR2004  the one that signs and the next
            self._keys = [_make_key(clock()), _make_key(clock())]
            self._signing = 0
            self._save()

    @property
    def keys(self) -> Sequence[SigningKey]:
        """All published keys, the oldest first."""
        return tuple(self._keys)

    @property
    def signing_key(self) -> SigningKey:
        """The key that signs now."""
        return self._keys[self._signing]

    def token(self, account: str, audience: str) -> Token:
        """The token of an account for an audience: the same one until it is nearly used up."""
        known = self._tokens.get((account, audience))
        if known is None or known.expires_at - self._clock() < RENEW_SECONDS:
            claims = self.claims(account, audience)
            known = Token(self.sign(claims), claims["exp"])
            self._tokens[account, audience] = known
        return known

    def mint(self, account: str, audience: str, **claim_overrides: Any) -> str:
        """A token; with overrides always a fresh one. An override of None leaves the claim out."""
        if not claim_overrides:
            return self.token(account, audience).id_token
        claims = self.claims(account, audience) | claim_overrides
        return self.sign({name: value for name, value in claims.items() if value is not None})

    def claims(self, account: str, audience: str) -> dict[str, Any]:
        """The claims of a token issued now, as Google's for a push."""
        now = int(self._clock())
        number = _account_number(account)
        return {
            "aud": audience,
            "azp": number,
            "email": account,
            "email_verified": True,
            "exp": now + LIFETIME_SECONDS,
            "iat": now,
            "iss": self.issuer,
            "sub": number,
        }

    def sign(self, claims: dict[str, Any], *, key: SigningKey | None = None, **headers: Any) -> str:
        """Sign any claims; a key that is not published and other headers may be given."""
        chosen = key or self.signing_key
        all_headers = {"kid": chosen.kid, "typ": "JWT"} | headers
        return jwt.encode(claims, chosen.key, algorithm="RS256", headers=all_headers)

    def rotate(self, *, keep_previous: bool = True) -> None:
        """Sign with the key published as the next one and publish a new next one.

        The previous key stays published until the following rotation, or goes at once; then every
        token signed with it is void, those handed out here included.
        """
        first = self._signing if keep_previous else self._signing + 1
        self._keys = [*self._keys[first:], _make_key(self._clock())][-PUBLISHED_KEYS:]
        self._signing = len(self._keys) - 2
        self._tokens.clear()
        self._save()

    def certificates(self) -> dict[str, str]:
        """The published certificates by key id."""
        return {key.kid: key.pem for key in self._keys}

    def jwks(self) -> dict[str, Any]:
        """The published keys as a JSON Web Key Set."""
        return {"keys": [key.jwk for key in self._keys]}

    def _save(self) -> None:
        if self._folder is not None:
            write_private(self._folder / "issuer-keys.pem", "".join(map(_pem, self._keys)))


def new_key() -> SigningKey:
    """A key that no issuer publishes, for tests of refusals."""
    return _make_key(time.time())


def _account_number(account: str) -> str:
    """The numeric id of an account: 21 digits, always the same for the same name."""
    digest = int.from_bytes(hashlib.sha256(account.encode()).digest())
    return f"1{digest % 10**20:020d}"


def _make_key(now: float) -> SigningKey:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    moment = datetime.fromtimestamp(now, UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer.localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - timedelta(minutes=5))
        .not_valid_after(moment + timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return SigningKey(key, certificate)


def _pem(key: SigningKey) -> str:
    private = key.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private.decode() + key.pem


def _read_keys(folder: Path) -> list[SigningKey]:
    """The stored keys in their order; none where the file is missing or damaged."""
    end = "-----END CERTIFICATE-----\n"
    try:
        blocks = (folder / "issuer-keys.pem").read_text().split(end)[:-1]
        return [_read_key(block + end) for block in blocks]
    except (OSError, ValueError):
        return []


def _read_key(pem: str) -> SigningKey:
    private, begin, rest = pem.partition("-----BEGIN CERTIFICATE-----")
    key = serialization.load_pem_private_key(private.encode(), None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ValueError("not an RSA key")  # noqa: TRY004  damaged content, not a wrong argument
    return SigningKey(key, x509.load_pem_x509_certificate((begin + rest).encode()))


class TokenRequest(BaseModel):
    """What `POST /token` takes."""

    account: str = Field(min_length=1, max_length=256)
    audience: str = Field(min_length=1, max_length=1024)


def issuer_app(issuer: Issuer) -> Starlette:
    """The issuer over HTTP: the two forms of the key set as Google serves them, and tokens.

    To be served on loopback only. Requests for another host name are refused, so that no web page
    can reach the tokens through a name that it points at this machine.
    """

    async def certificates(request: Request) -> Response:
        return await _keys(issuer, request, issuer.certificates())

    async def jwks(request: Request) -> Response:
        return await _keys(issuer, request, issuer.jwks())

    async def token(request: Request) -> Response:
        issuer.requests[request.url.path] += 1
        try:
            wanted = TokenRequest.model_validate_json(await request.body())
        except ValidationError:
            wanted_form = 'send {"account": "name@dev.localhost", "audience": "https://..."}'
            return JSONResponse({"error": wanted_form}, HTTPStatus.BAD_REQUEST)
        minted = issuer.token(wanted.account, wanted.audience)
        return JSONResponse(
            {"id_token": minted.id_token, "expires_at": minted.expires_at},
            headers={"Cache-Control": "no-store"},
        )

    return Starlette(
        routes=[
            Route("/oauth2/v1/certs", certificates),
            Route("/oauth2/v3/certs", jwks),
            Route("/token", token, methods=["POST"]),
        ],
        middleware=[
            Middleware(
                TrustedHostMiddleware,
                allowed_hosts=["localhost", "127.0.0.1"],
                www_redirect=False,
            )
        ],
    )


async def _keys(issuer: Issuer, request: Request, keys: dict[str, Any]) -> Response:
    """Answer with the keys, or as the fault that is switched on says."""
    issuer.requests[request.url.path] += 1
    body = json.dumps(keys, indent=2)
    match issuer.fault:
        case Fault.UNAVAILABLE:
            return PlainTextResponse("Service Unavailable", HTTPStatus.SERVICE_UNAVAILABLE)
        case Fault.HTML:
            return HTMLResponse("<!DOCTYPE html><title>Sorry</title><p>Unusual traffic</p>")
        case Fault.EMPTY:
            body = "{}"
        case Fault.TRUNCATED:
            body = body[: len(body) // 2]
        case Fault.SLOW:
            await asyncio.sleep(issuer.slow_seconds)
        case None:
            pass
    age = issuer.age_seconds
    caching = f"public, max-age={issuer.max_age_seconds}, must-revalidate, no-transform"
    headers = {
        "Cache-Control": caching,
        "Age": str(age),
        "Expires": formatdate(time.time() + issuer.max_age_seconds - age, usegmt=True),
    }
    return Response(body, media_type="application/json", headers=headers)
