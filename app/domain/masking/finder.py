"""The engines that find detectors in bytes: linear in the input, several threads at once.

Vectorscan looks for all of them in one pass. Where it cannot be had, or fails the self-test, RE2
does it in two: which words does a block hold, and then the detectors of those words only. Both are
imported when they are first needed.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Hit = tuple[int, int, int]
"""(end, start, number of the detector)."""


class EngineUnusable(Exception):
    """An engine is not installed here, or missed what it must find."""


@dataclass(frozen=True, slots=True)
class Detector:
    """A pattern without look-around, `.*`, `^` and `$`, which never crosses a line break.

    `words` are in lower case; each hit holds one of them. The canary is something it must find.
    """

    pattern: bytes
    canary: bytes
    words: tuple[bytes, ...]
    any_case: bool = False


class Finder(Protocol):
    """Finds every detector in a text. Safe for use by several threads."""

    name: str

    def find(self, data: bytes, most: int) -> list[Hit] | None:
        """All hits in the order of their ends; None if there are more than `most`."""
        ...

    def find_literals(self, literals: Sequence[bytes], data: bytes, most: int) -> list[Hit] | None:
        """The same for plain literals, overlapping ones included."""
        ...


class Vectorscan:
    """Vectorscan through pyperscan. One database; a scanner for each thread."""

    name = "vectorscan"

    def __init__(self, detectors: Sequence[Detector]) -> None:
        try:
            self._engine: Any = importlib.import_module("pyperscan")
        except ImportError as error:
            raise EngineUnusable("pyperscan is not installed") from error
        self._local = threading.local()
        flag = self._engine.Flag
        self._database = self._engine.BlockDatabase(
            *(
                self._engine.Pattern(
                    detector.pattern,
                    flag.SOM_LEFTMOST,
                    *((flag.CASELESS,) if detector.any_case else ()),
                    tag=number,
                )
                for number, detector in enumerate(detectors)
            )
        )

    def find(self, data: bytes, most: int) -> list[Hit] | None:
        """All hits in the order of their ends; None if there are more than `most`."""
        kept = getattr(self._local, "scanner", None)
        if kept is None:
            hits: list[Hit] = []
            limit = [most]
            kept = self._local.scanner = (self._scanner(self._database, hits, limit), hits, limit)
        scanner, hits, limit = kept
        hits.clear()
        limit[0] = most
        scanner.scan(data)
        return None if len(hits) > most else sorted(hits)

    def _scanner(self, database: Any, hits: list[Hit], limit: list[int]) -> Any:
        go_on, stop = self._engine.Scan.Continue, self._engine.Scan.Terminate

        def collect(_: object, number: int, start: int, end: int) -> Any:
            hits.append((end, start, number))
            return go_on if len(hits) <= limit[0] else stop

        return database.build(None, collect)

    def find_literals(self, literals: Sequence[bytes], data: bytes, most: int) -> list[Hit] | None:
        """All hits in the order of their ends; None if there are more than `most`."""
        if len(data) <= _SMALL:
            return find_each(literals, data, most)
        pattern, flag = self._engine.Pattern, self._engine.Flag.SOM_LEFTMOST
        database = self._engine.BlockDatabase(
            *(pattern(_hex(text[:_HEAD]), flag, tag=number) for number, text in enumerate(literals))
        )
        heads: list[Hit] = []
        self._scanner(database, heads, [most]).scan(data)
        if len(heads) > most:
            return None
        return sorted(
            (start + len(literals[number]), start, number)
            for _, start, number in heads
            if data.startswith(literals[number], start)
        )


_SMALL = 128 * 1024  # up to here, looking for each costs less than to compile a database
_HEAD = 48  # of longer literals only so much is compiled; the rest is compared


def _hex(literal: bytes) -> bytes:
    """A pattern for these very bytes; a NUL would end it unless it is written as an escape."""
    return b"".join(b"\\x%02x" % byte for byte in literal)


def find_each(literals: Sequence[bytes], data: bytes, most: int) -> list[Hit] | None:
    """All literals, one after the other, overlapping ones included."""
    hits: list[Hit] = []
    for number, literal in enumerate(literals):
        at = data.find(literal)
        while at >= 0:
            hits.append((at + len(literal), at, number))
            if len(hits) > most:
                return None
            at = data.find(literal, at + 1)
    return sorted(hits)


class Re2:
    """RE2: slower, and to be had where Vectorscan is not."""

    name = "re2"

    def __init__(self, detectors: Sequence[Detector]) -> None:
        try:
            engine: Any = importlib.import_module("re2")
        except ImportError as error:
            raise EngineUnusable("google-re2 is not installed") from error
        options = engine.Options()
        options.encoding = engine.Options.Encoding.LATIN1
        options.max_mem = 256 << 20
        options.log_errors = False
        self._patterns = [
            engine.compile(
                (b"(?i)" if detector.any_case else b"") + detector.pattern, options=options
            )
            for detector in detectors
        ]
        words = sorted({word for detector in detectors for word in detector.words})
        folded = engine.Options()
        folded.encoding = engine.Options.Encoding.LATIN1
        folded.case_sensitive = False
        folded.literal = True
        folded.max_mem = 256 << 20
        self._words = engine.Set.SearchSet(folded)
        for word in words:
            self._words.Add(word)
        self._words.Compile()
        self._numbers = [
            [number for number, detector in enumerate(detectors) if word in detector.words]
            for word in words
        ]

    def find(self, data: bytes, most: int) -> list[Hit] | None:
        """All hits in the order of their ends; None if there are more than `most`."""
        hits: list[Hit] = []
        for start, end in _blocks(data):
            block = data[start:end]
            numbers = {
                number for word in self._words.Match(block) or () for number in self._numbers[word]
            }
            for number in numbers:
                for found in self._patterns[number].finditer(block):
                    hits.append((start + found.end(), start + found.start(), number))
                    if len(hits) > most:
                        return None
        return sorted(hits)

    def find_literals(self, literals: Sequence[bytes], data: bytes, most: int) -> list[Hit] | None:
        """All hits in the order of their ends; None if there are more than `most`."""
        return find_each(literals, data, most)


_BLOCK = 4096
_BREAK = re.compile(rb"[\r\n]")


def _blocks(data: bytes) -> Iterator[tuple[int, int]]:
    """The text in pieces of whole lines, none much longer than it must be."""
    start = 0
    while start < len(data):
        found = _BREAK.search(data, min(start + _BLOCK, len(data)))
        end = found.end() if found else len(data)
        yield start, end
        start = end


_PADDINGS = (0, 1, 15, 16, 17, 41)


def check(finder: Finder, detectors: Sequence[Detector]) -> None:
    """Find each detector's canary behind and before blanks of several widths, and all in one text.

    Engines of this kind have missed matches on some processors. EngineUnusable says what was.
    """
    places = []
    everything = bytearray()
    for number, detector in enumerate(detectors):
        for padding in _PADDINGS:
            text = b" " * padding + detector.canary + b" " * (padding // 2)
            if not any(hit[2] == number for hit in finder.find(text, 1000) or ()):
                raise EngineUnusable(f"{finder.name} missed the canary of detector {number}")
        everything += b" " * (number % 7) + detector.canary + b"\n"
        places.append((number, len(everything)))
    found = finder.find(bytes(everything), 100_000) or []
    missing = {number for number, _ in places} - {hit[2] for hit in found}
    if missing:
        raise EngineUnusable(f"{finder.name} missed {len(missing)} canaries in a longer text")


def load(detectors: Sequence[Detector]) -> tuple[Finder, str]:
    """The first engine that works here, with what was wrong with those before it ("" if nothing).

    EngineUnusable if there is none: nothing may then be stored.
    """
    problems = []
    for engine in (Vectorscan, Re2):
        try:
            finder: Finder = engine(detectors)
            check(finder, detectors)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one, the next is tried
            problems.append(f"{engine.name}: {error}")
        else:
            return finder, "; ".join(problems)
    raise EngineUnusable("; ".join(problems))
