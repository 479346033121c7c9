"""The values that a sender names as secret, in every form in which they commonly show up.

They live as long as one request. Nothing here keeps, logs or repeats them.
"""

from __future__ import annotations

import binascii
import html
import json
import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote, quote_plus

from app.domain.masking.finder import Finder, find_each
from app.domain.masking.marks import Mark

MIN_BYTES = 4
"""Shorter values would hide half of every text: they are refused, and the refusal is shown."""
MAX_BYTES = 16 * 1024
"""Longer values could not be kept whole between two chunks."""
MAX_VALUES = 256
MAX_BYTES_IN_ALL = 128 * 1024
KIND = "exact"

_BREAK = re.compile(rb"\r\n|[\r\n]")
_LINE_BYTES, _LINE_LETTERS = 8, 6
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")


class Exact:
    """The forms of some values, ready to be looked for.

    `too_short` and `too_long` are the places of those that are not looked for; too long are also
    those that there is no room for, in number or in bytes.
    """

    def __init__(self, given: Sequence[bytes] = ()) -> None:
        short, long, forms = [], [], dict[bytes, bool]()
        room = MAX_BYTES_IN_ALL
        for place, value in enumerate(given):
            bare = value.strip()
            if len(bare) < MIN_BYTES:
                short.append(place)
            elif len(bare) > min(MAX_BYTES, room) or place >= MAX_VALUES:
                long.append(place)
            else:
                room -= len(bare)
                for form, is_base64 in _forms(bare):
                    forms.setdefault(form, is_base64)
        self.too_short = tuple(short)
        self.too_long = tuple(long)
        self._forms = tuple(forms)
        self._base64 = tuple(forms.values())
        self._several = [form for form in forms if _BREAK.search(form)]
        self.longest = max(map(len, forms), default=0)

    def __repr__(self) -> str:
        return f"Exact({len(self._forms)} forms)"

    def __bool__(self) -> bool:
        return bool(self._forms)

    def find(self, finder: Finder | None, data: bytes, most: int) -> list[Mark] | None:
        """Where they stand, overlapping ones included; None if there are more than `most`."""
        search = finder.find_literals if finder else find_each
        hits = search(self._forms, data, most) if self._forms else []
        if hits is None:
            return None
        return [
            Mark(start, _group_end(data, start, end) if self._base64[form] else end, start, KIND)
            for end, start, form in hits
        ]

    def uncut(self, data: bytes, at: int) -> int:
        """`at`, or where a value of several lines begins that may go on behind it."""
        for form in self._several:
            for line in _BREAK.finditer(form):
                for size in {line.end(), line.start() + 1}:
                    start = at - size
                    rest = data[at : at + len(form) - size]
                    if (
                        start >= 0
                        and data.startswith(form[:size], start)
                        and form.startswith(rest, size)
                    ):
                        return min(start, self.uncut(data, start))
        return at


def _forms(value: bytes) -> Iterator[tuple[bytes, bool]]:
    """Every form of a value, each with whether it is base64."""
    lines = [line.strip() for line in _BREAK.split(value)]
    useful = [line for line in lines if _is_useful(line)] if len(lines) > 1 else []
    joined = [separator.join(lines) for separator in (b"\n", b"\r\n", b" ", b"")]
    for text in dict.fromkeys([value, *(joined if len(lines) > 1 else ()), *useful]):
        yield text, False
        yield from ((form, False) for form in _escaped(text) if len(form) >= MIN_BYTES)
        yield from ((form, True) for form in _base64(text))


def _is_useful(line: bytes) -> bool:
    """True for lines that tell something: `{` and `"id":7,` would hide what is no secret."""
    return len(line) >= _LINE_BYTES and sum(map(bytes.isalnum, _each(line))) >= _LINE_LETTERS


def _each(line: bytes) -> Iterator[bytes]:
    return (line[at : at + 1] for at in range(len(line)))


def _escaped(value: bytes) -> Iterator[bytes]:
    yield value.hex().encode()
    yield value.hex().upper().encode()
    yield value.replace(b"'", b"'\\''").replace(b"\n", b"\\n")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    for form in _escaped_text(text):
        yield form.encode()
    for safe in ("", "/", "!'()*~", "!'()*~/"):
        for escape in (quote, quote_plus):
            form = escape(value, safe=safe)
            yield form.encode()
            yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form).encode()


def _escaped_text(text: str) -> Iterator[str]:
    for ascii_only in (False, True):
        once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield once
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1]
        yield once.replace("/", "\\/")
        yield re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", once)
    yield html.escape(text, quote=False)
    for quotes in (("&#x27;", "&quot;"), ("&#39;", "&#34;"), ("&apos;", "&quot;")):
        yield html.escape(text, quote=False).replace("'", quotes[0]).replace('"', quotes[1])


def _base64(value: bytes) -> Iterator[bytes]:
    """The whole groups of the value's base64 for each of the three ways it can lie in a text."""
    for skip in range(3):
        rest = value[skip:]
        text = binascii.b2a_base64(rest, newline=False)[: len(rest) * 8 // 6]
        if len(text) >= MIN_BYTES:
            yield text
            yield text.replace(b"+", b"-").replace(b"/", b"_")


def _group_end(data: bytes, start: int, end: int) -> int:
    """Where the last group of four ends that begins within the hit, its padding included."""
    limit = start + -(-(end - start) // 4) * 4
    while end < limit and data[end : end + 1] and data[end] in _BASE64:
        end += 1
    while end < limit and data[end : end + 1] == b"=":
        end += 1
    return end
