"""JSON as this service accepts it: bounded depth, bounded numbers, no ambiguity.

A number that fits in ten bytes can stand for a hundred thousand digits once it is stored, and a
body of brackets can exhaust a parser, so both are refused here, before anything else looks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import orjson

from app.domain.errors import BodyNotJson

MAX_DEPTH = 32
MAX_NUMBER_LITERAL = 40
_LARGEST, _SMALLEST = 1e100, 1e-100
REPLACEMENT = "\ufffd"


def parse(body: bytes | str) -> Any:
    """The document in `body`; BodyNotJson says what is wrong, without repeating any of it."""
    try:
        text = body if isinstance(body, str) else _decoded(body)
        value = _DECODER.decode(text)
    except UnicodeDecodeError:
        raise BodyNotJson("The body is not UTF-8 text.") from None
    except json.JSONDecodeError as error:
        raise BodyNotJson(f"The body is not JSON: {error.msg} at character {error.pos}.") from None
    except RecursionError:
        raise BodyNotJson(f"The body is nested deeper than {MAX_DEPTH} levels.") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth_exceeds(value, MAX_DEPTH):
        raise BodyNotJson(f"The body is nested deeper than {MAX_DEPTH} levels.")
    return value


def _float(literal: str) -> float:
    value = float(literal)
    if (
        len(literal) > MAX_NUMBER_LITERAL
        or not math.isfinite(value)
        or not (value == 0 or _SMALLEST <= abs(value) <= _LARGEST)
    ):
        raise BodyNotJson("The body holds a number that is too long, too large or too small.")
    return value


def _int(literal: str) -> int:
    if len(literal) > MAX_NUMBER_LITERAL:
        raise BodyNotJson("The body holds a number that is too long, too large or too small.")
    return int(literal)


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of two members of one name a proxy may have read the other one."""
    value = dict(members)
    if len(value) != len(members):
        raise BodyNotJson("The body holds an object with two members of the same name.")
    return value


def _constant(_: str) -> Any:
    raise BodyNotJson("The body holds NaN or Infinity, which JSON does not have.")


_DECODER = json.JSONDecoder(
    parse_float=_float, parse_int=_int, parse_constant=_constant, object_pairs_hook=_object
)


def _decoded(body: bytes) -> str:
    return body.decode(json.detect_encoding(body), "surrogatepass")


def dumps(value: Any) -> str:
    """The JSON text of a parsed value; integers of any size stay exact."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value, ensure_ascii=False)


def _depth_exceeds(value: Any, limit: int) -> bool:
    """Walk level by level, so that the check itself cannot recurse too deep."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def clean(text: str) -> str:
    """`text` with what PostgreSQL cannot store (NUL, lone surrogates) replaced by U+FFFD."""
    if text.isascii():
        return text.replace("\x00", REPLACEMENT)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\x00", REPLACEMENT)


def is_clean(text: str) -> bool:
    """True if PostgreSQL can store `text` as it is."""
    return "\x00" not in text and (
        text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)
    )


def map_text(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON value with `change` applied to every string, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): map_text(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [map_text(inner, change) for inner in value]
    return value


def cut(text: str, limit_bytes: int) -> str:
    """At most `limit_bytes` of UTF-8, never through a character; a cut is shown by an ellipsis."""
    encoded = text.encode()
    if len(encoded) <= limit_bytes:
        return text
    return encoded[: limit_bytes - 3].decode(errors="ignore") + "…"
