"""Views of a text in which encoded secrets stand in the clear, and the way back from them."""

from __future__ import annotations

import binascii
import re
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property

from app.domain.masking import values
from app.domain.masking.blocks import encoded_line, line_before

Become = bytes | Callable[[re.Match[bytes]], bytes]

BEFORE, AFTER = 512, 8 * 1024


class View(ABC):
    """A decoded text that knows where each of its bytes came from."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @abstractmethod
    def start(self, at: int) -> int:
        """Where the byte `at` came from."""

    def within(self, at: int) -> int:
        """The same, but never before it where one character holds parts of several bytes."""
        return self.start(at)

    @abstractmethod
    def end(self, at: int) -> int:
        """Where that ended which the text up to `at` came from."""


_PIECE = 64 * 1024
_BETWEEN = re.compile(rb"[\r\n]|\x1b(?!\\)")


def _pieces(data: bytes) -> Iterator[bytes]:
    """The text in pieces between which no escape lies: one long replacement would hold the GIL."""
    start = 0
    while start < len(data):
        found = _BETWEEN.search(data, start + _PIECE) if len(data) - start > _PIECE else None
        end = found.start() if found else len(data)
        yield data[start:end]
        start = end


class _Replaced(View):
    """A range of a text in which each match of a pattern has become something shorter."""

    def __init__(
        self, data: bytes, start: int, end: int, pattern: re.Pattern[bytes], become: Become
    ) -> None:
        super().__init__(b"".join(pattern.sub(become, piece) for piece in _pieces(data[start:end])))
        self._source = data, start, end, pattern, become

    @cached_property
    def _places(self) -> tuple[list[int], list[int]]:
        """After each replacement, where the text goes on here and there. Rarely asked for."""
        data, start, end, pattern, become = self._source
        ours, theirs = [0], [start]
        size, at = 0, start
        for found in pattern.finditer(data, start, end):
            size += found.start() - at + (len(become(found)) if callable(become) else 0)
            at = found.end()
            ours.append(size)
            theirs.append(at)
        return ours, theirs

    def start(self, at: int) -> int:
        ours, theirs = self._places
        place = bisect_right(ours, at) - 1
        return theirs[place] + at - ours[place]

    def end(self, at: int) -> int:
        if callable(self._source[-1]):
            return self.start(at)
        ours, theirs = self._places
        place = max(bisect_left(ours, at) - 1, 0)
        return theirs[place] + at - ours[place]


_COLOURS = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78cM])"
)


def without_colours(data: bytes) -> View | None:
    """The text without the control sequences of terminals; None if there are none."""
    if b"\x1b" not in data:
        return None
    view = _Replaced(data, 0, len(data), _COLOURS, b"")
    return view if len(view.text) < len(data) else None


PERCENT = rb"%(?:25)?(?:3d|3a|3c|22|27|2f|40|2b|5f|20--)"
UNICODE = rb"\\u00(?:22|26|27|2b|2f|3a|3c|3d|3e|40|5f)"
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")
_PERCENT_OR_PLUS = re.compile(rb"%([0-9A-Fa-f]{2})|\+")
_UNICODE = re.compile(rb"\\u00([0-7][0-9A-Fa-f])")


def window(data: bytes, start: int, end: int) -> tuple[int, int]:
    """The piece of the line around a hit that is decoded at once."""
    return (
        values.line_start(data, start, BEFORE),
        min(values.line_end(data, end), end + AFTER),
    )


def from_percent(data: bytes, start: int, end: int) -> Iterator[View]:
    """The views of a URL-encoded piece: as it is, and with each plus as a blank."""
    yield _Replaced(data, start, end, _PERCENT, _from_hex)
    if b"+" in data[start:end]:
        yield _Replaced(data, start, end, _PERCENT_OR_PLUS, _from_hex)


def from_unicode(data: bytes, start: int, end: int) -> Iterator[View]:
    r"""The view of a piece in which characters are written as `\u0022`."""
    yield _Replaced(data, start, end, _UNICODE, _from_hex)


def _from_hex(found: re.Match[bytes]) -> bytes:
    return bytes((int(found[1], 16),)) if found[1] else b" "


_ALPHABET = rb"A-Za-z0-9+/_\-"
_RUN = re.compile(rb"[%b]{0,65536}={0,2}" % _ALPHABET)
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_BASE64_BEFORE = 768
_BLOCK_BEFORE, _BLOCK_LINES = 16, 1024


class _Base64(View):
    """Decoded base64; `places` says where the pieces of the encoded text stand."""

    def __init__(self, text: bytes, ours: list[int], theirs: list[int], *, size: int) -> None:
        super().__init__(text)
        self._ours, self._theirs, self._size = ours, theirs, size

    def _place(self, at: int) -> int:
        place = bisect_right(self._ours, at) - 1
        return self._theirs[place] + at - self._ours[place]

    def start(self, at: int) -> int:
        return self._place(at // 3 * 4)

    def within(self, at: int) -> int:
        return self._place(min(-(-at // 3) * 4, self._size - 1))

    def end(self, at: int) -> int:
        return self._place(min(-(-at // 3) * 4, self._size) - 1) + 1


def from_base64(data: bytes, start: int, phase: int) -> tuple[View | None, int]:
    """The view of the run of base64 around a hit, and up to where it reaches.

    `start` is where the hit begins, `phase` the place of its first character within its group of
    four. A run that goes on over equally wide lines is read as one.
    """
    lines = _wrapped(data, start)
    if len(lines) > 1:
        joined = b"".join(data[first:last] for first, last in lines)
        ours, theirs = [], []
        size = 0
        for first, last in lines:
            ours.append(size)
            theirs.append(first)
            size += last - first
        return _decode(joined, ours, theirs), lines[-1][1]
    head = data[max(0, start - _BASE64_BEFORE) : start]
    first = start - (len(head) - len(head.rstrip(_LETTERS)))
    first += (start - phase - first) % 4
    run = _RUN.match(data, first)
    last = run.end() if run else first
    return _decode(data[first:last], [0], [first]), last


def _decode(text: bytes, ours: list[int], theirs: list[int]) -> View | None:
    padded = text.translate(_TO_STANDARD)
    bare = padded.rstrip(b"=")
    if len(bare) % 4 == 1:
        bare = bare[:-1]
    try:
        plain = binascii.a2b_base64(bare + b"=" * (-len(bare) % 4))
    except binascii.Error:
        return None
    return _Base64(plain, ours, theirs, size=len(text))


def _wrapped(data: bytes, at: int) -> list[tuple[int, int]]:
    """The base64 of each line of the block of equally wide lines that holds `at`."""
    start = values.line_start(data, at, 256)
    form = encoded_line(data[start : values.line_end(data, at)])
    if form is None:
        return []
    indent, width = form
    lines = [(start + indent, start + indent + width)]
    while len(lines) < _BLOCK_BEFORE and (line := line_before(data, start, 256)):
        if encoded_line(data[slice(*line)]) != form:
            break
        start = line[0]
        lines.insert(0, (start + indent, line[1]))
    end = lines[-1][1]
    more = re.compile(
        rb"(?:\r\n|[\r\n])[ \t]{%d}([%b]{1,%d})={0,2}(?=[\r\n]|\Z)" % (indent, _ALPHABET, width)
    )
    while len(lines) < _BLOCK_LINES and (following := more.match(data, end)):
        lines.append((following.start(1), following.end()))
        end = following.end()
        if lines[-1][1] - lines[-1][0] != width:
            break
    return lines


_ANCHOR = 4  # fewer characters turn up in any base64 too often


def anchors(word: bytes) -> Iterator[tuple[bytes, int]]:
    """What of the base64 of `word` does not depend on its neighbours, with its place in the group.

    One for each of the three ways a word can lie; too short ones are left out.
    """
    for before in range(3):
        text = binascii.b2a_base64(b"\x00" * before + word + b"\x00\x00", newline=False)
        first = -(-before * 8 // 6)
        last = (before + len(word)) * 8 // 6
        if last - first >= _ANCHOR:
            yield text[first:last], first % 4
