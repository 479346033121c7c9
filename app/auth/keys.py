"""Verification keys and the two documents that issuers publish them in.

A key has one algorithm, given by its type; what a token says about its algorithm only ever has to
agree. Keys that cannot serve (other types, short RSA keys, encryption keys) are passed over, and a
document without a single usable key is no key document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from google.auth import jwt as google_jwt
from jwt import PyJWK
from jwt.api_jws import PyJWS

Algorithm = Literal["RS256", "ES256"]

_MIN_RSA_BITS: Final = 2048
# google-auth compares times with a clock of its own; ours are checked by the caller, exactly.
_ANY_TIME_SECONDS: Final = 10**12
_JWS: Final = PyJWS()
_JWK_MEMBERS: Final[Mapping[tuple[str, str | None], tuple[Algorithm, tuple[str, ...]]]] = {
    ("RSA", None): ("RS256", ("kty", "n", "e")),
    ("EC", "P-256"): ("ES256", ("kty", "crv", "x", "y")),
}


class VerificationKey(Protocol):
    """One public key; equal keys compare equal."""

    @property
    def algorithm(self) -> Algorithm:
        """The only algorithm this key verifies."""

    def has_signed(self, token: str) -> bool:
        """Whether this key made the token's signature. It never raises; times are not looked at."""


Keys = Mapping[str, VerificationKey]


@dataclass(frozen=True, slots=True)
class CertificateKey:
    """The RSA key of an X.509 certificate."""

    key_id: str
    pem: str
    algorithm: Algorithm = "RS256"

    def has_signed(self, token: str) -> bool:
        """See `VerificationKey`."""
        try:
            google_jwt.decode(  # type: ignore[no-untyped-call]
                token,
                certs={self.key_id: self.pem},
                clock_skew_in_seconds=_ANY_TIME_SECONDS,
            )
        except Exception:  # noqa: BLE001 - hostile input has raised far more than the documented errors
            return False
        return True


@dataclass(frozen=True, slots=True)
class WebKey:
    """An RSA or P-256 key of a JSON Web Key Set, by its public members only."""

    members: tuple[str, ...]
    algorithm: Algorithm
    jwk: PyJWK = field(compare=False)

    def has_signed(self, token: str) -> bool:
        """See `VerificationKey`."""
        try:
            _JWS.decode(token, key=self.jwk, algorithms=[self.algorithm])
        except Exception:  # noqa: BLE001 - as above
            return False
        return True


def read_certificates(document: bytes) -> Keys:
    """The keys of `{key id: PEM certificate}`; empty if it is anything else."""
    content = _json(document)
    entries = content.items() if isinstance(content, dict) else ()
    keys = ((key_id, _read(_certificate_key, (key_id, pem))) for key_id, pem in entries)
    return {key_id: key for key_id, key in keys if key is not None}


def read_key_set(document: bytes) -> Keys:
    """The RS256 and ES256 keys of a JWK Set (RFC 7517) that have a key id; empty otherwise."""
    content = _json(document)
    entries = content.get("keys") if isinstance(content, dict) else None
    keys: dict[str, VerificationKey] = {}
    for entry in entries if isinstance(entries, list) else ():
        key = _read(_web_key, entry)
        if key is not None:
            keys.setdefault(entry["kid"], key)
    return keys


def _certificate_key(entry: tuple[str, str]) -> CertificateKey | None:
    key_id, pem = entry
    public = x509.load_pem_x509_certificate(pem.encode()).public_key()
    strong = isinstance(public, RSAPublicKey) and public.key_size >= _MIN_RSA_BITS
    return CertificateKey(key_id, pem) if key_id and strong else None


def _web_key(entry: dict[str, Any]) -> WebKey | None:
    algorithm, names = _JWK_MEMBERS[entry["kty"], entry.get("crv")]
    members = {name: entry[name] for name in names}
    jwk = PyJWK.from_dict(members, algorithm)
    weak = isinstance(jwk.key, RSAPublicKey) and jwk.key.key_size < _MIN_RSA_BITS
    if weak or not _is_for_signatures(entry, algorithm):
        return None
    return WebKey(tuple(members.values()), algorithm, jwk)


def _is_for_signatures(entry: dict[str, Any], algorithm: Algorithm) -> bool:
    return (
        isinstance(entry["kid"], str)
        and entry.get("use", "sig") == "sig"
        and entry.get("alg", algorithm) == algorithm
        and "verify" in entry.get("key_ops", ["verify"])
    )


def _read(make: Callable[[Any], VerificationKey | None], entry: object) -> VerificationKey | None:
    try:
        return make(entry)
    except Exception:  # noqa: BLE001 - one odd entry must not cost the good ones beside it
        return None


def _json(document: bytes) -> object:
    try:
        return json.loads(document)
    except (ValueError, RecursionError):
        return None
