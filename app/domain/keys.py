"""Server keys: what is derived from one names it, so keys can be changed without breaking anything.

Digests are HMAC-SHA-256 over canonical JSON (RFC 8785) and are stored as `version:key_id:hex`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import rfc8785

_SAFE_INTEGER = 2**53 - 1
_VERSION = "1"


class KeyRetired(LookupError):
    """A stored value names a key that is no longer in the settings."""


@dataclass(frozen=True)
class KeyRing:
    """All server keys by id. New things use `current`; old ones are checked with their own."""

    current: str
    secrets: Mapping[str, bytes] = field(repr=False)
    _derived: dict[tuple[str, str], bytes] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def mac(self, purpose: str, message: bytes, key_id: str | None = None) -> bytes:
        """HMAC of `message` under a key that is derived for `purpose` alone."""
        key_id = key_id or self.current
        subkey = self._derived.get((purpose, key_id))
        if subkey is None:
            secret = self.secrets.get(key_id)
            if secret is None:
                raise KeyRetired(key_id)
            subkey = hmac.digest(secret, purpose.encode(), "sha256")
            self._derived[purpose, key_id] = subkey
        return hmac.digest(subkey, message, "sha256")

    def digest(self, purpose: str, value: Any, key_id: str | None = None) -> str:
        """`version:key_id:hex` of a JSON value, the same for every spelling of that value."""
        key_id = key_id or self.current
        return f"{_VERSION}:{key_id}:{self.mac(purpose, canonical(value), key_id).hex()}"

    def matches(self, stored: str, purpose: str, value: Any) -> bool:
        """Whether `stored` is the digest of `value`, under the key that it names.

        False when that key has left the settings: then nothing can be shown to be the same.
        """
        key_id = stored.split(":", 2)[1]
        return key_id in self.secrets and hmac.compare_digest(
            stored, self.digest(purpose, value, key_id)
        )

    def digests(self, purpose: str, value: Any) -> tuple[str, ...]:
        """The digest under every key, the current one first: a look-up survives a rotation."""
        others = (key_id for key_id in self.secrets if key_id != self.current)
        return tuple(self.digest(purpose, value, key_id) for key_id in (self.current, *others))

    def mac_text(self, purpose: str, message: bytes) -> str:
        """`version:key_id:hex` of raw bytes."""
        return f"{_VERSION}:{self.current}:{self.mac(purpose, message).hex()}"

    def mac_matches(self, stored: str, purpose: str, message: bytes) -> bool:
        """Whether `stored` is the `mac_text` of these bytes, under the key that it names.

        False when that key has left the settings.
        """
        key_id = stored.split(":", 2)[1]
        if key_id not in self.secrets:
            return False
        expected = f"{_VERSION}:{key_id}:{self.mac(purpose, message, key_id).hex()}"
        return hmac.compare_digest(stored, expected)


def canonical(value: Any) -> bytes:
    """Canonical JSON (RFC 8785). Integers beyond 2**53, which it does not cover, stay exact."""
    if _is_plain(value):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return rfc8785.dumps(_exact(value))


def _is_plain(value: Any) -> bool:
    """Whether sorted JSON of this value is canonical already: all ASCII, and no fractions."""
    kind = type(value)
    if kind is str:
        return str(value).isascii()
    if kind is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if kind is list:
        return all(map(_is_plain, value))
    if kind is int:
        return bool(-_SAFE_INTEGER <= value <= _SAFE_INTEGER)
    return value is None or kind is bool


def _exact(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _SAFE_INTEGER else {"\x00int": str(value)}
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_exact(key): _exact(inner) for key, inner in value.items()}
    return [_exact(inner) for inner in value]


def sha256_hex(data: bytes) -> str:
    """The SHA-256 of `data` in lower-case hex."""
    return hashlib.sha256(data).hexdigest()
