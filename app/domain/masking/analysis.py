"""From bytes to marks: find, examine each hit, look into what is encoded, and nothing twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property

from app.domain.masking import blocks, cut, encoded, finder
from app.domain.masking.contexts import CONTEXTS, Context
from app.domain.masking.exact import KIND, Exact
from app.domain.masking.finder import Detector, Hit
from app.domain.masking.marks import Found, Mark
from app.domain.masking.shapes import SHAPES, Shape

MAX_DEPTH = 2
_HITS_PER_MIB, _HITS_ALWAYS = 20_000, 512
_DENSE_BLOCK = cut.PROGRESS_BYTES


class Role(Enum):
    """What a hit without a rule of its own leads to."""

    KEY_BEGIN = auto()
    KEY_END = auto()
    YAML = auto()
    PERCENT = auto()
    UNICODE = auto()


@dataclass(frozen=True, slots=True)
class Anchor:
    """What gives away that base64 hides a word, and its place within a group of four."""

    phase: int


Rule = Shape | Context | Role | Anchor

_PLAIN_WORDS = (
    b"-----BEGIN", b"PRIVATE KEY", b"password", b"Password", b"PASSWORD", b"passwd", b"secret",
    b"Secret", b"SECRET", b"token", b"Token", b"TOKEN", b"api_key", b"apikey", b"api-key",
    b"apiKey", b"API_KEY", b"access_key", b"accessKey", b"ACCESS_KEY", b"private_key",
    b"client-key", b"AccountKey", b"Authorization", b"authorization", b"Bearer ", b"https://",
    b"http://", b"postgres", b"mysql://", b"mongodb", b"redis://", b"amqp", b"eyJhbG", b".eyJ",
    b"PASS=", b"_PASS", b"_pass", b"Cookie: ", b"cookie: ", b'"auth":', b"Basic ", b"_TOKEN",
    b"_KEY=",
)  # fmt: skip


def _base64_words() -> Iterator[bytes]:
    yield from _PLAIN_WORDS
    for shape in SHAPES:
        yield from {shape.text.partition("<")[0].encode(), shape.word}


def _detectors() -> tuple[list[Detector], list[Rule]]:
    """Every detector beside the rule that its hits belong to."""
    pairs: list[tuple[Detector, Rule]] = [
        (Detector(shape.detector, shape.canary, (shape.word.lower(),)), shape) for shape in SHAPES
    ]
    pairs += [
        (Detector(rule.detector, rule.canary, rule.literals, any_case=True), rule)
        for rule in CONTEXTS
    ]
    begin, end = b"-----BEGIN RSA PRIVATE KEY-----", b"-----END RSA PRIVATE KEY-----"
    pairs += [
        (Detector(blocks.KEY_BEGIN, begin, (b"private key",)), Role.KEY_BEGIN),
        (Detector(blocks.KEY_END, end, (b"private key",)), Role.KEY_END),
        (
            Detector(blocks.YAML_BLOCK, b"password: |", (b"|", b">"), any_case=True),
            Role.YAML,
        ),
        (Detector(encoded.PERCENT, b"%3D", (b"%",), any_case=True), Role.PERCENT),
        (Detector(encoded.UNICODE, rb"\u0022", (rb"\u00",), any_case=True), Role.UNICODE),
    ]
    texts = {anchor: None for word in _base64_words() for anchor in encoded.anchors(word)}
    pairs += [
        (Detector(re.escape(text), text, (text.lower(),)), Anchor(phase)) for text, phase in texts
    ]
    detectors, rules = zip(*pairs, strict=True)
    return list(detectors), list(rules)


class Engine:
    """The loaded finder and the rules of its detectors. Made once; safe for several threads.

    EngineUnusable if no finder works here.
    """

    def __init__(self) -> None:
        detectors, self._rules = _detectors()
        self.finder, self.problem = finder.load(detectors)
        self._detectors = detectors

    @cached_property
    def patterns(self) -> tuple[bytes, ...]:
        """The detectors' patterns, to tell one set of rules from another."""
        return tuple(detector.pattern for detector in self._detectors)

    def analyze(self, data: bytes, exact: Exact, depth: int = 0) -> Found:
        """Everything in `data` that is to be masked.

        In time linear in its size: where hits are so many that examining them would not be, whole
        lines are withheld instead.
        """
        most = _HITS_ALWAYS + _HITS_PER_MIB * len(data) // (1024 * 1024)
        hits = self.finder.find(data, most)
        named = exact.find(self.finder, data, most) if hits is not None else None
        if hits is None or named is None:
            return self._dense(data, exact, depth)
        found = Found(named)
        if hits:
            _Examination(self, data, exact, depth, found).run(hits, self._rules)
        if depth < MAX_DEPTH and (view := encoded.without_colours(data)):
            self.look_into(view, exact, depth, found, spread=True)
        return found

    def look_into(
        self, view: encoded.View, exact: Exact, depth: int, found: Found, *, spread: bool = False
    ) -> None:
        """Add what a decoded text holds; `spread`: what may go on behind its end as well."""
        inner = self.analyze(view.text, exact, depth + 1)
        for mark in inner.marks:
            begin = view.within if mark.kind == KIND else view.start
            found.marks.append(
                Mark(begin(mark.start), view.end(mark.end), view.start(mark.context), mark.kind)
            )
        if spread:
            found.open += map(view.start, inner.open)

    def _dense(self, data: bytes, exact: Exact, depth: int) -> Found:
        """The same, piece by piece; of a piece that holds too many hits each line is withheld."""
        if len(data) <= _DENSE_BLOCK:
            return Found(list(_withhold(data, 0, len(data))))
        found, start = Found(), 0
        while start < len(data):
            piece = data[start : start + _DENSE_BLOCK]
            inner = self.analyze(piece, exact, depth)
            last = start + len(piece) == len(data)
            end = len(piece) if last else cut.boundary(piece, inner, exact)
            found.marks += (
                replace(
                    mark,
                    start=start + mark.start,
                    end=start + min(mark.end, end),
                    context=start + mark.context,
                )
                for mark in inner.marks
                if mark.start < end
            )
            if last:
                found.open += (start + place for place in inner.open)
            start += end
        return found


_LINE = re.compile(rb"[^\r\n]+")


def _withhold(data: bytes, start: int, end: int) -> Iterator[Mark]:
    for line in _LINE.finditer(data, start, end):
        yield Mark(line.start(), line.end(), line.start(), "withheld")


@dataclass
class _Examination:
    """One pass over the hits of one text."""

    engine: Engine
    data: bytes
    exact: Exact
    depth: int
    found: Found
    seen: dict[object, int] = field(default_factory=dict)
    begins: list[tuple[int, int]] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)

    def run(self, hits: Iterable[Hit], rules: list[Rule]) -> None:
        for end, start, number in hits:
            rule = rules[number]
            if isinstance(rule, Anchor):
                self._base64(rule, start)
            elif end > self.seen.get(number, 0):
                self.seen[number] = self._examine(rule, start, end)
        blocks.mark_keys(self.found, self.data, self.begins, self.ends)

    def _examine(self, rule: Rule, start: int, end: int) -> int:
        """Look at one hit; up to where nothing more need be looked at for this detector."""
        match rule:
            case Shape():
                return self._shape(rule, start, end)
            case Context():
                value = rule.examine(self.data, start, end)
                if value is None:
                    return end
                self._mark(value.start, value.end, value.context, rule.kind)
                return value.seen
            case Role.KEY_BEGIN:
                self.begins.append((start, end))
            case Role.KEY_END:
                self.ends.append((start, end))
            case Role.YAML:
                return blocks.mark_yaml(self.found, self.data, start, end)
            case Role.PERCENT | Role.UNICODE:
                return self._escapes(rule, start, end)
        return end

    def _mark(self, start: int, end: int, context: int, kind: str) -> None:
        self.found.marks.append(Mark(start, end, context, kind))

    def _shape(self, shape: Shape, start: int, end: int) -> int:
        if shape.bounded and _runs_on(self.data, start):
            return end
        if shape.mixed and not _is_mixed(self.data[start:end]):
            return end
        tail = shape.tail.match(self.data, end)
        stop = tail.end() if tail else end
        if shape.bounded and shape.mixed and _in_base64(self.data, start, stop):
            return stop
        self._mark(start, stop, start, shape.kind)
        return stop

    def _escapes(self, rule: Role, start: int, end: int) -> int:
        if self.depth >= MAX_DEPTH:
            return len(self.data)
        low, high = encoded.window(self.data, start, end)
        decode = encoded.from_percent if rule is Role.PERCENT else encoded.from_unicode
        for view in decode(self.data, low, high):
            self.engine.look_into(view, self.exact, self.depth, self.found)
        return high

    def _base64(self, anchor: Anchor, start: int) -> None:
        phase = (start - anchor.phase) % 4
        if start < self.seen.get(("base64", phase), 0) or self.depth >= MAX_DEPTH:
            return
        view, self.seen["base64", phase] = encoded.from_base64(self.data, start, anchor.phase)
        if view is not None:
            self.engine.look_into(view, self.exact, self.depth, self.found)


def _runs_on(data: bytes, start: int) -> bool:
    r"""True if a word runs into this place. `%20` and `\n` before it are no word."""
    before = data[max(0, start - 3) : start]
    if not before or not (before[-1:].isalnum() or before[-1:] == b"_"):
        return False
    escaped = before[:1] == b"%" and len(before) == 3  # noqa: PLR2004 - % and two digits
    return not (escaped or (before[-2:-1] == b"\\" and before[-1:] in b"nrt"))


def _in_base64(data: bytes, start: int, end: int) -> bool:
    """True in the middle of a longer run of base64, where any few letters stand at some time."""
    before = data[max(0, start - 32) : start]
    run = before[len(before.rstrip(_BASE64)) :]
    return data[end : end + 1] in {b"+", b"/"} or (len(run) >= 24 and _is_mixed(run))  # noqa: PLR2004


_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def _is_mixed(text: bytes) -> bool:
    """True if there is a digit, a small and a capital letter: words and hashes are not so."""
    return (
        any(map(bytes.isdigit, (text[at : at + 1] for at in range(len(text)))))
        and not text.islower()
        and not text.isupper()
    )
