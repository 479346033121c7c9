"""The message form of the control plane: `{"v": 1, "to": handler, "id": uuid, "data": …}`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from app.domain import jsontext
from app.domain.errors import BodyNotJson, EnvelopeInvalid
from app.domain.keys import KeyRing

VERSION = 1
MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message. `id` links traces and logs; several different messages may share one."""

    v: int
    to: str
    id: str
    data: Any

    def digest(self, keys: KeyRing) -> str:
        """What makes two messages the same one: equal v, to, id and data, whatever the spelling."""
        return keys.digest("message", self._identity())

    def digests(self, keys: KeyRing) -> tuple[str, ...]:
        """The digest under every server key, the current one first."""
        return keys.digests("message", self._identity())

    def _identity(self) -> list[Any]:
        return [self.v, self.to, self.id, self.data]


def parse(text: bytes) -> Envelope:
    """The envelope in `text`. Fields that this version does not know are ignored.

    EnvelopeInvalid says which part is wrong, without repeating it.
    """
    try:
        value = jsontext.parse(text)
    except BodyNotJson as error:
        raise EnvelopeInvalid(error.detail.replace("The body", "The message's data")) from None
    if not isinstance(value, dict):
        raise EnvelopeInvalid("The message's data is not a JSON object.")
    version, to, identifier = value.get("v"), value.get("to"), value.get("id")
    if isinstance(version, bool) or not isinstance(version, int) or version != VERSION:
        raise EnvelopeInvalid(f"The envelope's v is not {VERSION}.")
    if not isinstance(to, str) or not 1 <= len(to) <= MAX_NAME or not _is_plain(to):
        raise EnvelopeInvalid("The envelope's to is not the name of a handler.")
    if "data" not in value:
        raise EnvelopeInvalid("The envelope has no data.")
    return Envelope(version, to, _uuid_text(identifier), value["data"])


def _is_plain(name: str) -> bool:
    """Only such a name can be stored and shown; a handler's never is another."""
    return name.isascii() and name.isprintable()


def _uuid_text(identifier: Any) -> str:
    try:
        return str(UUID(identifier))
    except (ValueError, AttributeError, TypeError):
        raise EnvelopeInvalid("The envelope's id is not a UUID.") from None
