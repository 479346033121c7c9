"""An issuer of identity tokens with real keys, behind a real HTTP server that can misbehave.

It models what a caller sees of an issuer: the key document, its freshness headers and its faults.
Time is a clock that only a test moves.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from app.auth.tokens import TokenVerifier
from app.settings import IdentitySettings

ISSUER = "https://accounts.google.com"
AUDIENCE = "https://executions.example.test/push"
ACCOUNT = "push@project.iam.gserviceaccount.com"
ABSENT = ...  # leaves a claim or a header's member out


def b64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class Clock:
    """Wall and monotonic time, in step."""

    def __init__(self) -> None:
        self.passed = 0.0

    def wall(self) -> float:
        return 1_800_000_000.0 + self.passed

    def monotonic(self) -> float:
        return 5_000.0 + self.passed

    def move(self, seconds: float) -> None:
        self.passed += seconds


class SigningKey:
    """A private key with everything an issuer publishes about it."""

    def __init__(self, private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> None:
        self.private = private
        self.algorithm = "RS256" if isinstance(private, rsa.RSAPrivateKey) else "ES256"
        der = private.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.key_id = sha1(der).hexdigest()

    def certificate(self) -> str:
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer.example.test")])
        begin = datetime(2026, 1, 1, tzinfo=UTC)
        builder = x509.CertificateBuilder(
            subject_name=name,
            issuer_name=name,
            public_key=self.private.public_key(),
            serial_number=1,
            not_valid_before=begin,
            not_valid_after=begin + timedelta(days=36_500),
        )
        certificate = builder.sign(self.private, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM).decode()

    def web_key(self, **changes: Any) -> dict[str, Any]:
        public = self.private.public_key().public_numbers()
        if isinstance(public, rsa.RSAPublicNumbers):
            members = {"kty": "RSA", "n": _number(public.n, 256), "e": _number(public.e, 3)}
        else:
            members = {
                "kty": "EC",
                "crv": "P-256",
                "x": _number(public.x, 32),
                "y": _number(public.y, 32),
            }
        return members | {"kid": self.key_id, "use": "sig", "alg": self.algorithm} | changes

    def sign(self, content: bytes) -> bytes:
        if isinstance(self.private, rsa.RSAPrivateKey):
            return self.private.sign(content, padding.PKCS1v15(), hashes.SHA256())
        r, s = decode_dss_signature(self.private.sign(content, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def _number(value: int, size: int) -> str:
    return b64url(value.to_bytes(size, "big"))


class KeyServer:
    """Publishes keys over HTTP, or whatever else a test puts into `answer`."""

    def __init__(self) -> None:
        self.requests = 0
        self.answer = b""
        self.dripping = False
        self.answering = asyncio.Event()
        self.answering.set()
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/certs"

    async def stop(self) -> None:
        """Connections are refused from now on."""
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def idle(self) -> None:
        """Wait until the fetches that are under way have ended, well or badly."""
        fetches = {t for t in asyncio.all_tasks() if t.get_name() == "certificates.fetch"}
        if fetches:
            await asyncio.wait(fetches)

    def publish(self, *keys: SigningKey, cache_control: str = "public, max-age=3600") -> None:
        self.answer_with(
            json.dumps({key.key_id: key.certificate() for key in keys}),
            headers={"cache-control": cache_control},
        )

    def publish_key_set(self, *web_keys: dict[str, Any]) -> None:
        self.answer_with(
            json.dumps({"keys": web_keys}), headers={"cache-control": "public, max-age=3600"}
        )

    def answer_with(
        self,
        body: str | bytes,
        *,
        status: int = 200,
        headers: dict[str, str] | None = None,
        cut: int = 0,
    ) -> None:
        """`cut`: so many bytes of the announced body never come."""
        content = body.encode() if isinstance(body, str) else body
        lines = [f"HTTP/1.1 {status} Answer", f"content-length: {len(content)}"]
        lines += ["connection: close", *(f"{k}: {v}" for k, v in (headers or {}).items())]
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        self.answer = head + content[: len(content) - cut]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._handlers.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            await self.answering.wait()
            await self._send(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client gave up, which some tests are about
        finally:
            writer.close()
            self._handlers.discard(task)

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        """All at once, or byte by byte so slowly that no single byte is late."""
        if not self.dripping:
            writer.write(self.answer)
        for byte in self.answer if self.dripping else ():
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)
        await writer.drain()


class Tokens:
    """Mints tokens as the issuer does, and as it never would."""

    def __init__(self, clock: Clock, key: SigningKey) -> None:
        self._clock = clock
        self._key = key

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(self._clock.wall())
        claims = {
            "aud": AUDIENCE,
            "azp": "113774264463038321964",
            "email": ACCOUNT,
            "sub": "113774264463038321964",
            "email_verified": True,
            "exp": now + 3600,
            "iat": now,
            "iss": ISSUER,
        } | changes
        return {name: value for name, value in claims.items() if value is not ABSENT}

    def mint(
        self,
        *,
        key: SigningKey | None = None,
        header: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        return self.sign(json.dumps(self.claims(**claims)), key=key, header=header)

    def sign(
        self,
        payload: str,
        *,
        key: SigningKey | None = None,
        header: dict[str, Any] | None = None,
    ) -> str:
        """Sign any text as the claims of a token; `header` changes the header's members."""
        signer = key or self._key
        members = {"alg": signer.algorithm, "kid": signer.key_id, "typ": "JWT"} | (header or {})
        head = {name: value for name, value in members.items() if value is not ABSENT}
        signed = f"{b64url(json.dumps(head).encode())}.{b64url(payload.encode())}"
        return f"{signed}.{b64url(signer.sign(signed.encode()))}"


@dataclass(frozen=True)
class SigningKeys:
    """`current` is what the issuer publishes unless a test says otherwise; `strange` never."""

    current: SigningKey
    next: SigningKey
    strange: SigningKey
    curve: SigningKey
    weak: SigningKey


@pytest.fixture(scope="session")
def keys() -> SigningKeys:
    return SigningKeys(
        current=SigningKey(rsa.generate_private_key(65537, 2048)),
        next=SigningKey(rsa.generate_private_key(65537, 2048)),
        strange=SigningKey(rsa.generate_private_key(65537, 2048)),
        curve=SigningKey(ec.generate_private_key(ec.SECP256R1())),
        weak=SigningKey(rsa.generate_private_key(65537, 1024)),
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tokens(clock: Clock, keys: SigningKeys) -> Tokens:
    return Tokens(clock, keys.current)


@pytest.fixture(scope="session")
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False) as client:
        yield client


@pytest.fixture
async def server(keys: SigningKeys) -> AsyncIterator[KeyServer]:
    server = KeyServer()
    await server.start()
    server.publish(keys.current)
    yield server
    await server.stop()


@pytest.fixture
def settings(server: KeyServer) -> Callable[..., IdentitySettings]:
    """Settings with one Google-like issuer and one account; `changes` replace whole fields."""

    def make(**changes: Any) -> IdentitySettings:
        issuer = {"issuers": ("accounts.google.com", ISSUER), "certificates_url": server.url}
        grant = {
            "role": "pubsub",
            "issuer": "google",
            "audiences": (AUDIENCE,),
            "accounts": (ACCOUNT,),
        }
        return IdentitySettings.model_validate(
            {"issuers": {"google": issuer}, "grants": (grant,)} | changes
        )

    return make


@pytest.fixture
async def make_verifier(
    settings: Callable[..., IdentitySettings], http: httpx.AsyncClient, clock: Clock
) -> AsyncIterator[Callable[..., TokenVerifier]]:
    made: list[TokenVerifier] = []

    def make(**changes: Any) -> TokenVerifier:
        verifier = TokenVerifier(
            settings(**changes), http, clock=clock.wall, monotonic=clock.monotonic
        )
        made.append(verifier)
        return verifier

    yield make
    for verifier in made:
        await verifier.close()


@pytest.fixture
def verifier(make_verifier: Callable[..., TokenVerifier]) -> TokenVerifier:
    return make_verifier()


@pytest.fixture
def verify(verifier: TokenVerifier) -> Callable[[str], Awaitable[Any]]:
    """Verify one token, as a request with one `Authorization` header carries it."""

    async def one(token: str) -> Any:
        return await verifier.verify([f"Bearer {token}"])

    return one
