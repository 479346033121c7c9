"""What is kept of a message that failed where it cannot be kept itself: its form, and no value.

The form alone (names, types, sizes) is mostly enough to see what a sender got wrong.
"""

from __future__ import annotations

from typing import Any

from app.domain import jsontext

_MAX_ITEMS = 50
_MAX_DEPTH = 8
_MAX_NAME = 60


def outline(value: Any) -> str:
    """The JSON text of the value's form: every value replaced by its type and size."""
    return jsontext.dumps(_form(value, 0))


def outline_pointer(pointer: str) -> str:
    """A JSON pointer whose names are kept only where they cannot themselves be values."""
    parts = pointer.split("/")[1:]
    return "".join(f"/{part if part.isdecimal() else _name(part)}" for part in parts)


def _form(value: Any, depth: int) -> Any:
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        items = list(value.items())[:_MAX_ITEMS]
        return {_name(key): _form(inner, depth + 1) for key, inner in items}
    if isinstance(value, list) and depth < _MAX_DEPTH:
        return [_form(inner, depth + 1) for inner in value[:_MAX_ITEMS]]
    return _kind(value)


def _name(key: str) -> str:
    """A name that looks like one of ours; any other might itself be a value."""
    plain = key.isascii() and key.replace("_", "").isalpha() and len(key) <= _MAX_NAME
    return key if plain else f"name of {len(key)} characters"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return f"text of {len(value)} characters"
        case dict():
            return f"object of {len(value)} members"
        case _:
            return f"list of {len(value)} items"
