"""The settings as `check-config` shows them: each value, and where it came from; no secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import SecretStr, TypeAdapter

from app.settings.groups import PREFIX
from app.settings.loading import Settings


def lines(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """One line a setting."""
    for name, value in _flat(settings):
        yield f"{name} = {value}  ({_source(name, environ)})"


def _flat(settings: Settings) -> list[tuple[str, str]]:
    """Dotted name and shown value of every setting."""
    rows = []
    for group_name in type(settings).model_fields:
        group = getattr(settings, group_name)
        fields = getattr(type(group), "model_fields", None)
        if fields is None:
            rows.append((group_name, _shown(group)))
        else:
            rows += [(f"{group_name}.{f}", _shown(getattr(group, f))) for f in fields]
    return rows


def _shown(value: Any) -> str:
    """A value for a person: secrets hidden, groups and lists as JSON."""
    if isinstance(value, SecretStr):
        return "(hidden)"
    if value is None:
        return "(unset)"
    if isinstance(value, dict) and any(isinstance(v, SecretStr) for v in value.values()):
        return ", ".join(f"{key}: (hidden)" for key in value)
    if isinstance(value, (dict, tuple)):
        return TypeAdapter(Any).dump_json(value).decode()
    return str(value)


def _source(name: str, environ: Mapping[str, str]) -> str:
    """Which variable gave the setting its value."""
    full = PREFIX + name.replace(".", "__").upper()
    group = full.split("__")[0]
    for variable in (full, f"{full}_FILE"):
        if variable in environ:
            return variable
    if any(variable.startswith(f"{full}__") for variable in environ):
        return f"{full}__*"
    return group if group in environ else "default"
