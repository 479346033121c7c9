"""A log as it is read: chunk after chunk and lease after lease, in memory that does not grow.

A view is laid out in sections, runs of stored chunks and marks of our own between them. Every mark
is one line:

- before each further lease that has printed something;
- where something that was accepted is no longer kept;
- behind what was stored, where the log was cut off at the attempt's limit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta

from app.domain.errors import AttemptNotFound, ObjectStoreUnavailable
from app.objects.store import is_gone
from app.services import Services
from app.store import log_reads
from app.store.database import Connection
from app.store.log_reads import LeaseLog, Part, Run, Tail, View
from app.store.logs import Terms

_PAGE = 500
_MOST_AT_ONCE = 8 * 1024 * 1024
_TRIES = 3


def lease_mark(lease_number: int) -> bytes:
    """The line that readers get before the log of a further lease."""
    return f"--- lease {lease_number} ---\n".encode()


def truncation_mark(limit_bytes: int) -> bytes:
    """The line behind the last one that was stored below the attempt's limit."""
    return (
        f"--- cut off: the logs of one attempt may have {limit_bytes:,} bytes in all ---\n".encode()
    )


def hole_mark(stream: str, start: int, end: int) -> bytes:
    """The line in the place of what is no longer kept, by the sender's own offsets."""
    return f"--- {stream}: bytes {start} to {end - 1} are not kept any more ---\n".encode()


@dataclass(frozen=True, slots=True)
class Section:
    """A run of chunks, or a mark; where it begins in the view."""

    start: int
    size: int
    lines: int
    lease_number: int
    text: bytes = b""
    run: Run | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """A view at one moment."""

    view: View
    sections: Sequence[Section]
    leases: Sequence[LeaseLog]

    @property
    def total(self) -> int:
        """How many bytes there are."""
        return self.sections[-1].start + self.sections[-1].size if self.sections else 0

    @property
    def lines(self) -> int:
        """How many line feeds there are."""
        return sum(section.lines for section in self.sections)


def settled(lease: LeaseLog, view: View) -> bool:
    """Whether nothing more can come of the lease in this view.

    Whoever closed everything that it ever opened, and gave its lease up, has nothing left to send.
    """
    if lease.grace_over or (not lease.is_active and lease.all_closed):
        return True
    return view.stream is not None and lease.closed


def numbered(leases: Iterable[LeaseLog]) -> list[tuple[int, LeaseLog]]:
    """The leases that there are, with their numbers."""
    return [(lease.lease_number, lease) for lease in leases if lease.lease_number is not None]


def terms_of(services: Services) -> Terms:
    """The settings that decide for how long a log may still grow."""
    grace = timedelta(seconds=services.settings.leases.log_grace_seconds)
    return Terms(services.terms.lease_time, grace)


async def list_leases(services: Services, view: View) -> list[LeaseLog]:
    """The leases of the view. Raises AttemptNotFound."""
    terms = terms_of(services)
    found = await services.database.run(lambda conn: log_reads.list_leases(conn, view, terms))
    if not found:
        raise AttemptNotFound
    return found


async def lay_out(services: Services, view: View, *, only_settled: bool = False) -> Layout:
    """The view as it is now. Raises AttemptNotFound.

    `only_settled` ends it with the first lease of which more may come, so that what is laid out
    only ever grows at its end.
    """
    leases = await list_leases(services, view)
    tails = await services.database.run(lambda conn: log_reads.list_tails(conn, view))
    runs = await services.database.run(lambda conn: log_reads.list_runs(conn, view))
    limit = services.settings.limits.max_log_bytes_per_attempt
    builder = _Builder(view, limit)
    for number, lease in numbered(leases):
        of_lease = [run for run in runs if run.lease_number == number]
        missing = [tail for tail in tails if tail.lease_number == number]
        builder.add(number, lease, of_lease, missing)
        if only_settled and not settled(lease, view):
            break
    return Layout(view, builder.sections, leases)


class _Builder:
    def __init__(self, view: View, limit_bytes: int) -> None:
        self.sections: list[Section] = []
        self._view, self._limit_bytes = view, limit_bytes
        self._at = 0

    def add(self, number: int, lease: LeaseLog, runs: Sequence[Run], tails: Sequence[Tail]) -> None:
        ends = end_marks(lease, tails, self._view, self._limit_bytes)
        if self.sections and (runs or ends):
            self._mark(number, lease_mark(number))
        for run in runs:
            if run.hole_in is not None:
                mark = hole_mark(run.hole_in, run.hole_from or 0, run.hole_to or 0)
                self._mark(number, mark)
            self._put(Section(self._at, run.byte_size, run.line_count, number, run=run))
        for mark in ends:
            self._mark(number, mark)

    def _mark(self, number: int, text: bytes) -> None:
        self._put(Section(self._at, len(text), 1, number, text))

    def _put(self, section: Section) -> None:
        self.sections.append(section)
        self._at += section.size


def end_marks(lease: LeaseLog, tails: Sequence[Tail], view: View, limit_bytes: int) -> list[bytes]:
    """What stands behind the last chunk of a lease of which nothing more can come."""
    if not settled(lease, view):
        return []
    marks = [hole_mark(tail.stream, tail.hole_from, tail.hole_to) for tail in tails]
    return [*marks, *([truncation_mark(limit_bytes)] if lease.truncated else [])]


@dataclass(slots=True)
class Cursor:
    """How far the chunks of a view were read: the last whole one, and bytes of the next."""

    lease_number: int = 0
    arrival_number: int = 0
    inside: int = 0

    def advance(self, parts: list[Part], count: int) -> None:
        """So many bytes more; `parts` are the chunks that they are of, and lose what was read."""
        self.inside += count
        while parts and self.inside >= parts[0].byte_size:
            part = parts.pop(0)
            self.inside -= part.byte_size
            self.lease_number, self.arrival_number = part.lease_number, part.arrival_number


async def read_chunks(
    services: Services, view: View, cursor: Cursor, last: tuple[int, int]
) -> AsyncGenerator[bytes, None]:
    """The bytes of all chunks from the cursor up to and with `last`; moves the cursor with them.

    An object that was merged into another one meanwhile is looked up anew. Raises
    ObjectStoreUnavailable.
    """
    failures = 0

    async def next_parts(conn: Connection) -> list[Part]:
        after = (cursor.lease_number, cursor.arrival_number)
        return await log_reads.list_parts(conn, view, after, last, _PAGE)

    while parts := await services.database.run(next_parts):
        try:
            while parts:
                group = adjacent(parts)
                del parts[: len(group)]
                async with aclosing(_read_group(services, group, cursor)) as pieces:
                    async for piece in pieces:
                        failures = 0
                        yield piece
        except ObjectStoreUnavailable as error:
            failures += 1
            if failures >= _TRIES or not is_gone(error):
                raise


def adjacent(parts: Sequence[Part]) -> list[Part]:
    """The first chunks that lie one behind the other in one object: one request brings them all."""
    group = [parts[0]]
    size = parts[0].byte_size
    for part in parts[1:]:
        before = group[-1]
        size += part.byte_size
        if (
            part.object_key != before.object_key
            or part.object_offset != before.object_offset + before.byte_size
            or size > _MOST_AT_ONCE
        ):
            break
        group.append(part)
    return group


async def _read_group(
    services: Services, group: list[Part], cursor: Cursor
) -> AsyncGenerator[bytes, None]:
    first = group[0].object_offset + cursor.inside
    last = group[-1].object_offset + group[-1].byte_size - 1
    async with aclosing(services.objects.read(group[0].object_key, first, last)) as pieces:
        async for piece in pieces:
            cursor.advance(group, len(piece))
            yield piece
    if group:
        raise ObjectStoreUnavailable


async def read(
    services: Services, layout: Layout, first: int, last: int
) -> AsyncGenerator[bytes, None]:
    """The bytes from `first` to `last` inclusive of a layout, as they were when it was made."""
    for section in layout.sections:
        begin = max(first - section.start, 0)
        count = min(last - section.start, section.size - 1) - begin + 1
        if count <= 0:
            continue
        if section.run is None:
            yield section.text[begin : begin + count]
            continue
        async with aclosing(_read_run(services, layout.view, section.run, begin, count)) as pieces:
            async for piece in pieces:
                yield piece


async def _read_run(
    services: Services, view: View, run: Run, begin: int, count: int
) -> AsyncGenerator[bytes, None]:
    cursor = Cursor(run.lease_number, run.first_number - 1)
    if begin:
        found = await services.database.run(
            lambda conn: log_reads.find_byte(conn, view, run, begin)
        )
        if found is None:
            raise ObjectStoreUnavailable
        cursor = Cursor(run.lease_number, found.arrival_number - 1, begin - found.bytes_before)
    last = (run.lease_number, run.last_number)
    async with aclosing(read_chunks(services, view, cursor, last)) as pieces:
        async for piece in pieces:
            yield piece[:count]
            count -= len(piece)
            if count <= 0:
                return


async def find_tail(services: Services, layout: Layout, lines: int) -> int:
    """Where the last `lines` lines of a layout begin; what has no line feed yet counts as one."""
    if not layout.total:
        return 0
    end = [piece async for piece in read(services, layout, layout.total - 1, layout.total - 1)]
    number = layout.lines + (b"".join(end) != b"\n") - lines
    if number <= 0:
        return 0
    for section in layout.sections:
        if number <= section.lines:
            return section.start + await _behind_line(services, layout.view, section, number)
        number -= section.lines
    return layout.total


async def _behind_line(services: Services, view: View, section: Section, number: int) -> int:
    """The place in a section behind its line feed of that number, which counts from 1."""
    run = section.run
    if run is None:
        return section.size
    found = await services.database.run(lambda conn: log_reads.find_line(conn, view, run, number))
    if found is None:
        raise ObjectStoreUnavailable
    at, left = found.bytes_before, number - found.lines_before
    cursor = Cursor(run.lease_number, found.arrival_number - 1)
    last = (run.lease_number, found.arrival_number)
    async with aclosing(read_chunks(services, view, cursor, last)) as pieces:
        async for piece in pieces:
            count = piece.count(b"\n")
            if count >= left:
                place = -1
                for _ in range(left):
                    place = piece.index(b"\n", place + 1)
                return at + place + 1
            left -= count
            at += len(piece)
    return at
