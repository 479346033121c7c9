"""Header values by reference: `settings://name` or `file://name`, read when they are sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from app.settings import CallbackSettings

_MAX_BYTES = 8192
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class SecretMissing(LookupError):
    """A header names a secret that is not there, or that is no header value."""


def value_of(settings: CallbackSettings, reference: str) -> str:
    """The secret that a reference names. Raises SecretMissing.

    `settings://name` is looked up in `callbacks.secrets`, `file://name` is the file of that name
    in `callbacks.secrets_folder`, read anew each time, so a changed file is used at once.
    """
    scheme, _, name = reference.partition("://")
    value: str | None = None
    if scheme == "settings" and name in settings.secrets:
        value = settings.secrets[name].get_secret_value()
    elif scheme == "file" and settings.secrets_folder is not None:
        value = _content(settings.secrets_folder / name)
    if value is None or not _VALUE.fullmatch(value):
        raise SecretMissing(reference)
    return value


def _content(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        return raw.decode().strip() if len(raw) <= _MAX_BYTES else None
    except (OSError, UnicodeDecodeError):
        return None


def resolve(settings: CallbackSettings, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with their values. Raises SecretMissing."""
    return {name: value_of(settings, reference) for name, reference in headers.items()}
