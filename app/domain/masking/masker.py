"""The masker: what comes in goes out without its secrets."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from app.domain.masking import cut, structured
from app.domain.masking.exact import Exact
from app.domain.masking.finder import EngineUnusable
from app.domain.masking.marks import Found, Mark

if TYPE_CHECKING:
    from app.domain.masking.analysis import Engine

MASK = b"***"
WITHHELD = "[withheld: masking failed]"
FAILED = "failed"

ExactValues = Sequence[bytes] | Exact
_NO_VALUES = Exact()
_NAME_LENGTH = 64
_NAMES = 4096


@dataclass(frozen=True, slots=True)
class Counts:
    """How many masks were set, by kind, and which exact values were refused (by their place)."""

    kinds: Mapping[str, int] = field(default_factory=dict)
    too_short: tuple[int, ...] = ()
    too_long: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many masks were set."""
        return sum(self.kinds.values())

    @property
    def warning(self) -> str:
        """A sentence for whoever reads the log, if an exact value was refused; else empty."""
        refused = len(self.too_short) + len(self.too_long)
        return (
            f"[masking: {refused} value(s) to mask were refused:"
            f" {len(self.too_short)} too short, {len(self.too_long)} too long or too many]"
            if refused
            else ""
        )


@dataclass(frozen=True, slots=True)
class Masked:
    """Masked bytes and what was done to them."""

    data: bytes
    counts: Counts

    @property
    def count(self) -> int:
        """How many masks were set."""
        return self.counts.count

    @property
    def kinds(self) -> Mapping[str, int]:
        """How many masks of each kind were set."""
        return self.counts.kinds

    @property
    def too_short(self) -> tuple[int, ...]:
        """The places of the exact values that are too short to be looked for."""
        return self.counts.too_short


@dataclass(frozen=True, slots=True)
class Chunk:
    """The part of a chunk that may be stored: `accepted` raw bytes of it, masked."""

    accepted: int
    masked: Masked


@dataclass(frozen=True, slots=True)
class Health:
    """What masks here, and what is wrong with it ("" if nothing)."""

    engine: str
    rules: str
    problem: str

    @property
    def usable(self) -> bool:
        """False if everything is withheld because nothing can be masked."""
        return bool(self.engine)


class _UncleanError(Exception):
    """A name in which something was found."""


_loading = threading.Lock()


@lru_cache(maxsize=1)
def _load() -> Engine | EngineUnusable:
    from app.domain.masking.analysis import Engine  # noqa: PLC0415 - the rules, when first needed

    try:
        return Engine()
    except EngineUnusable as error:
        return error


def _engine() -> Engine:
    with _loading:
        engine = _load()
    if isinstance(engine, EngineUnusable):
        raise engine
    return engine


class Masker:
    """Masks secrets in bytes, texts and JSON values. Pure: no I/O, and nothing secret is kept.

    The rules are compiled once per process, at the first use or by `prepare`, which takes up to a
    second. Safe for several threads at once; most of the time runs without the GIL. Whatever
    goes wrong inside, nothing unmasked comes out: the whole is replaced by a sentence that says so,
    and counted under the kind `failed`.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        self._given = engine
        self._known_names = lru_cache(maxsize=_NAMES)(self._require_clean)

    def prepare(self) -> Health:
        """Compile and check the rules now, and say what they are."""
        try:
            engine = self._given or _engine()
        except EngineUnusable as error:
            return Health("", "", str(error))
        rules = hashlib.sha256(b"\n".join(engine.patterns)).hexdigest()[:12]
        return Health(engine.finder.name, rules, engine.problem)

    def mask_bytes(self, data: bytes, exact: ExactValues = ()) -> Masked:
        """`data` with every secret in it replaced by ``***``. Every other byte stays as it was."""
        values = _exact(exact)
        try:
            return _masked(data, len(data), self._analyze(data, values), values)
        except Exception:  # noqa: BLE001 - fail closed, whatever it is
            return _withheld(values)

    def mask_text(self, text: str, exact: ExactValues = ()) -> tuple[str, Counts]:
        """The same for a text; lone surrogates and NUL pass."""
        masked = self.mask_bytes(text.encode("utf-8", "surrogatepass"), exact)
        if not masked.count:
            return text, masked.counts
        try:
            return masked.data.decode("utf-8", "surrogatepass"), masked.counts
        except UnicodeDecodeError:
            return masked.data.decode("utf-8", "replace"), masked.counts

    def mask_json(self, value: Any, exact: ExactValues = ()) -> tuple[Any, Counts]:
        """A copy of a JSON value, masked in every string and name, of the same shape.

        Under a name that announces a secret every string and longer number is replaced, however
        deep; so is the `value` beside a `name` of that kind, and the data of a Secret.
        """
        values = _exact(exact)
        kinds: Counter[str] = Counter()

        def mask(text: str) -> str:
            changed, counts = self.mask_text(text, values)
            kinds.update(counts.kinds)
            return changed

        try:
            changed = structured.mask(value, mask, kinds)
        except Exception:  # noqa: BLE001 - fail closed, whatever it is
            return WITHHELD, _withheld(values).counts
        return changed, Counts(dict(kinds), values.too_short, values.too_long)

    def safe_cut(self, data: bytes, exact: ExactValues = (), *, final: bool) -> int:
        """The last place up to which no secret can be split by what may come next.

        0 asks for more. All of it if `final`, and never 0 from 64 KiB on. Masking what lies before
        the cut, and going on with a chunk that begins there, gives what masking the whole would.
        Raises EngineUnusable where nothing can be masked.
        """
        if final:
            return len(data)
        values = _exact(exact)
        return cut.boundary(data, self._analyze(data, values), values)

    def mask_chunk(self, data: bytes, exact: ExactValues = (), *, final: bool) -> Chunk:
        """`safe_cut` and `mask_bytes` in one pass. If masking fails, all of it is withheld."""
        values = _exact(exact)
        try:
            found = self._analyze(data, values)
            accepted = len(data) if final else cut.boundary(data, found, values)
            return Chunk(accepted, _masked(data, accepted, found, values))
        except Exception:  # noqa: BLE001 - fail closed, whatever it is
            return Chunk(len(data), _withheld(values))

    def find_secrets_in_spec(self, spec: Any) -> list[str]:
        """The JSON pointers of the values in a job specification that look like secrets.

        That is: a string in which `mask_text` finds something, and what stands under a name that
        announces a secret. Under such a name these are none: a reference (`{"secret_ref": "…"}`,
        `vault://…`), a template or variable, a path, a digest, `null`, a boolean, a number of at
        most five digits, a word of at most seven small letters. Elsewhere only the text counts, so
        ids, digests and paths pass. No pointer repeats a secret. Raises EngineUnusable where
        nothing can be told.
        """
        if self._given is None:
            _engine()
        return structured.find(spec, self._masked_text, self._masked_name)

    def is_clean_name(self, name: str) -> bool:
        """Whether `mask_text` finds nothing, for what comes again and again: names and types.

        Short ones that were clean are remembered, any others never.
        """
        if len(name) > _NAME_LENGTH:
            return not self.mask_text(name)[1].count
        try:
            self._known_names(name)
        except _UncleanError:
            return False
        return True

    def _require_clean(self, name: str) -> None:
        if self.mask_text(name)[1].count:
            raise _UncleanError  # and so it is not remembered

    def _masked_text(self, text: str) -> str:
        return self.mask_text(text)[0]

    def _masked_name(self, name: str) -> str:
        return name if self.is_clean_name(name) else self._masked_text(name)

    def _analyze(self, data: bytes, exact: Exact) -> Found:
        return (self._given or _engine()).analyze(data, exact)


def _exact(given: ExactValues) -> Exact:
    if isinstance(given, Exact):
        return given
    return Exact(given) if given else _NO_VALUES


def _withheld(exact: Exact) -> Masked:
    return Masked(WITHHELD.encode(), Counts({FAILED: 1}, exact.too_short, exact.too_long))


def _masked(data: bytes, end: int, found: Found, exact: Exact) -> Masked:
    """The first `end` bytes with the marks in place; marks that touch become one."""
    if not found.marks:
        return Masked(data[:end], Counts({}, exact.too_short, exact.too_long))
    pieces: list[bytes] = []
    kinds: Counter[str] = Counter()
    at = 0
    for start, stop, kind in _merged(found.marks, end):
        pieces += (data[at:start], MASK)
        kinds[kind] += 1
        at = stop
    pieces.append(data[at:end])
    return Masked(b"".join(pieces), Counts(dict(kinds), exact.too_short, exact.too_long))


def _merged(marks: list[Mark], limit: int) -> list[tuple[int, int, str]]:
    """The marks as ranges that do not touch, each with the kind that begins it."""
    merged: list[tuple[int, int, str]] = []
    for mark in sorted(marks, key=lambda mark: (mark.start, -mark.end, mark.kind)):
        start, end = mark.start, min(mark.end, limit)
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            first, last, kind = merged[-1]
            merged[-1] = (first, max(last, end), kind)
        else:
            merged.append((start, end, mark.kind))
    return merged
