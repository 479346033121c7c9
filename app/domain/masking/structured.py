"""Secrets in JSON values, where names stand beside what they name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from app.domain.masking import names, values

MASK = "***"
_KIND = "named_value"
_NAMES = ("name", "key", "Name", "Key")
_VALUES = ("value", "Value")
_REFERENCES = ("secret_ref", "secretRef")
_LONG_NUMBER = 5  # digits; as many may be a port or a count

MaskText = Callable[[str], str]


def mask(value: Any, mask_text: MaskText, kinds: Counter[str], *, named: bool = False) -> Any:
    """A copy with every secret replaced; `named`: it stands under the name of a secret."""
    if isinstance(value, dict):
        return _mask_members(value, mask_text, kinds, named=named)
    if isinstance(value, list):
        return [mask(inner, mask_text, kinds, named=named) for inner in value]
    if named and _is_secret_leaf(value):
        kinds[_KIND] += 1
        return MASK
    return mask_text(value) if isinstance(value, str) else value


def _mask_members(
    members: dict[str, Any], mask_text: MaskText, kinds: Counter[str], *, named: bool
) -> dict[str, Any]:
    masked: dict[str, Any] = {}
    for name, value in members.items():
        changed = mask(
            value, mask_text, kinds, named=_names_secret(members, name, value, named=named)
        )
        masked[_free(mask_text(name), masked)] = changed
    return masked


def _free(name: str, taken: dict[str, Any]) -> str:
    """The name, with a number if two names have become the same."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name} {number}"
    return free


def _names_secret(members: dict[str, Any], name: str, value: Any, *, named: bool) -> bool:
    """Whether what stands under `name` is secret because of the names around it."""
    if name in _REFERENCES:
        return False
    if isinstance(value, str) and names.refers(name, value):
        return False
    if named or names.is_secret(name):
        return not names.is_about(name)
    if name in _VALUES:
        return any(
            isinstance(label, str) and names.is_secret(label) for label in map(members.get, _NAMES)
        )
    if name in {"data", "stringData"} and members.get("kind") == "Secret":
        return True
    return isinstance(value, str) and names.holds(name, value)


def _is_secret_leaf(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value.strip()) and not values.is_placeholder(value.encode(errors="replace"))
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and len(str(value)) > _LONG_NUMBER
    )


def find(spec: Any, mask_text: MaskText, mask_name: MaskText) -> list[str]:
    """The JSON pointers of the values that look like secrets, in the order of the document."""
    return list(dict.fromkeys(_find(spec, "", mask_text, mask_name, named=False)))


def _find(
    value: Any, pointer: str, mask_text: MaskText, mask_name: MaskText, *, named: bool
) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            clean = mask_name(name)
            below = f"{pointer}/{clean.replace('~', '~0').replace('/', '~1')}"
            if clean != name:
                yield below
            secret = _names_secret(value, name, inner, named=named)
            yield from _find(inner, below, mask_text, mask_name, named=secret)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _find(inner, f"{pointer}/{place}", mask_text, mask_name, named=named)
    elif (named and _is_secret_leaf(value) and not _is_plain(value)) or (
        isinstance(value, str) and mask_text(value) != value
    ):
        yield pointer


def _is_plain(value: Any) -> bool:
    """True for a short word in small letters, which names something rather than being secret."""
    return (
        isinstance(value, str)
        and len(value) <= values.SHORT_WORD
        and value.islower()
        and (value.isalpha())
    )
