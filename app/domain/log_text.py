"""Text out of bytes that come in pieces: whole characters, and lines that hold a word."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass


class Characters:
    """Bytes into text, never breaking a character: what may still become one is held back.

    Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self) -> None:
        """At the beginning of a stream."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def held_back(self) -> int:
        """How many bytes wait for the rest of their character; at most three."""
        return len(self._decoder.getstate()[0])

    def feed(self, data: bytes) -> str:
        """The text of all whole characters so far."""
        return self._decoder.decode(data)

    def end(self) -> str:
        """The text of what was held back, since nothing more comes."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class Match:
    """A line that holds the word."""

    offset: int
    """Where the word begins, in bytes of what was fed."""
    line_number: int
    """Counts from 1."""
    text: str
    """The line, or of a long one what is around the word."""


BEFORE, BEHIND = 160, 320


class LineSearch:
    """Finds the lines that hold a word, across the edges of pieces, in bounded memory.

    One match a line, at the word's first place in it. The line's text is cut to what is around the
    word. It begins at `place`: a byte, its line, and whether that line was found already.
    """

    def __init__(self, word: bytes, place: tuple[int, int, bool] = (0, 1, False)) -> None:
        self._word = word
        self._buffer = b""
        self._at, self._line, self._skipping = place
        self._from = 0

    @property
    def place(self) -> tuple[int, int, bool]:
        """Where a later search goes on: it finds no line twice and leaves none out."""
        line = self._line + self._buffer.count(b"\n", 0, self._from)
        return self._at + self._from, line, self._skipping

    def feed(self, data: bytes, *, final: bool = False) -> Iterator[Match]:
        """The matches of which enough has come to show them."""
        self._buffer += data
        while True:
            if self._skipping:
                end = self._buffer.find(b"\n", self._from)
                if end < 0:
                    self._from = len(self._buffer)
                    break
                self._from, self._skipping = end + 1, False
            found = self._buffer.find(self._word, self._from)
            if found < 0:
                self._from = max(self._from, len(self._buffer) - len(self._word) + 1)
                break
            if not final and found + len(self._word) + BEHIND > len(self._buffer):
                self._from = found
                break
            match = self._match(found)
            self._from, self._skipping = found + len(self._word), True
            yield match
        self._forget()

    def _match(self, found: int) -> Match:
        begin = self._buffer.rfind(b"\n", 0, found) + 1
        end = self._buffer.find(b"\n", found)
        end = len(self._buffer) if end < 0 else end
        shown = self._buffer[max(begin, found - BEFORE) : min(end, found + BEHIND)]
        line = self._line + self._buffer.count(b"\n", 0, found)
        return Match(self._at + found, line, whole_characters(shown))

    def _forget(self) -> None:
        """Drop what no later match can show."""
        drop = max(self._from - BEFORE, 0)
        self._line += self._buffer.count(b"\n", 0, drop)
        self._at += drop
        self._from -= drop
        self._buffer = self._buffer[drop:]


def whole_characters(data: bytes) -> str:
    """The text of these bytes; characters cut at either edge are left out."""
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:  # noqa: PLR2004 - UTF-8
        start += 1
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(data[start:]).rstrip("\r")
