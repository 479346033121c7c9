"""What the parts of the masking tell each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mark:
    """`data[start:end]` is to be masked. No cut may lie between `context` and `end`."""

    start: int
    end: int
    context: int
    kind: str


@dataclass(slots=True)
class Found:
    """All that was found in a text.

    `open` are places from which on the masks depend on what follows, so nothing behind them may be
    stored yet.
    """

    marks: list[Mark] = field(default_factory=list)
    open: list[int] = field(default_factory=list)


_LINE = re.compile(rb"[^\s][^\r\n]*")


def mark_lines(start: int, end: int, data: bytes, context: int, kind: str) -> Iterator[Mark]:
    """A mark for each line of a range, so that indentation and line breaks stay.

    They hang together: no cut may lie between two of them.
    """
    for line in _LINE.finditer(data, start, end):
        yield Mark(line.start(), line.end(), context, kind)
