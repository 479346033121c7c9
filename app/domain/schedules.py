"""Schedules: when one is due, what is made of due times that were missed, what it sends. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Self
from uuid import UUID, uuid5

from pydantic import AfterValidator, AwareDatetime, Field, StringConstraints, model_validator

from app.domain import crontimes
from app.domain.commands import Command, JsonObject, bounded
from app.domain.envelope import MAX_NAME

NAMESPACE = UUID("7d9f2a34-5d0b-5c8e-9a53-0f7f5c1f0b6e")
"""The namespace of the envelope ids of schedules (RFC 9562, section 5.5). Never to be changed."""
PLACEHOLDER = "{{due_at}}"
MAX_DATA_BYTES = 64 * 1024
WALK = 1000
"""Due times that are looked at in one pass, for each schedule."""
MAX_LATE_FIRES = 500

Misfire = Literal["skip", "once", "all"]


def _cron(text: str) -> str:
    crontimes.check(text)
    return " ".join(text.split())


def _zone(name: str) -> str:
    crontimes.find_zone(name)
    return name


def _in_reach(moment: datetime) -> datetime:
    if not 2000 <= moment.year < 9000:  # noqa: PLR2004
        raise ValueError("must lie between the years 2000 and 8999")
    return moment.astimezone(UTC)


ScheduleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]
Cron = Annotated[
    str,
    StringConstraints(max_length=200, pattern=r"^[A-Za-z0-9*/,#? \t-]+$"),
    AfterValidator(_cron),
]
Zone = Annotated[
    str,
    StringConstraints(max_length=100, pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,3}$"),
    AfterValidator(_zone),
]


class PutSchedule(Command):
    """Send a message to a handler at times that a cron expression names, or once."""

    cron: Cron | None = None
    """Minute, hour, day, month, weekday, as Debian's cron reads them; a sixth field in front holds
    seconds. Exactly one of `cron` and `at` is given."""
    time_zone: Zone = "UTC"
    """The place whose clock `cron` speaks of, by its IANA name."""
    at: Annotated[AwareDatetime, AfterValidator(_in_reach)] | None = None
    """The one time at which it comes due."""
    to: Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]
    """The handler, one of those that the settings allow to schedules."""
    data: Annotated[JsonObject, bounded(MAX_DATA_BYTES)]
    """What the handler gets, at most 64 KiB; `{{due_at}}` in its texts becomes the due time."""
    misfire: Misfire = "once"
    """What is made of due times that were missed by more than a minute: nothing, one message for
    all of them, or one for each, up to `misfire_limit`."""
    misfire_limit: Annotated[int, Field(strict=True, ge=1, le=MAX_LATE_FIRES)] = 100
    """Messages at most for missed due times, the latest ones; the others are skipped."""
    jitter_seconds: Annotated[int, Field(strict=True, ge=0, le=3600)] = 0
    """Each message goes out up to so long after its due time: how long follows from name and time,
    so that it is the same whoever sends it."""

    @model_validator(mode="after")
    def _one_timing(self) -> Self:
        if (self.cron is None) == (self.at is None):
            raise ValueError("give either cron or at")
        if self.cron is not None and first_due(self.timing, datetime.now(UTC)) is None:
            raise ValueError("this cron expression never comes due")
        return self

    @property
    def timing(self) -> Timing:
        """When it comes due."""
        return Timing(self.cron, self.time_zone, self.at, self.jitter_seconds)


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule comes due, and how far its messages are spread."""

    cron: str | None
    time_zone: str
    at: datetime | None
    jitter_seconds: int

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The due times later than `moment`."""
        if self.cron is None:
            return iter([self.at] if self.at is not None and self.at > moment else [])
        return crontimes.times_after(self.cron, crontimes.find_zone(self.time_zone), moment)


def first_due(timing: Timing, now: datetime) -> datetime | None:
    """The first due time of a schedule that begins now; a single one may lie in the past."""
    if timing.cron is None:
        return timing.at
    return next(timing.after(now), None)


def fire_at(name: str, timing: Timing, due_at: datetime) -> datetime:
    """When the message of a due time goes out."""
    if not timing.jitter_seconds:
        return due_at
    digest = hashlib.sha256(f"{name}/{due_text(due_at)}".encode()).digest()
    spread = int.from_bytes(digest[:8]) % (timing.jitter_seconds * 1000)
    return due_at + timedelta(milliseconds=spread)


@dataclass(frozen=True, slots=True)
class Pending:
    """A schedule that has come due."""

    name: str
    timing: Timing
    misfire: Misfire
    misfire_limit: int
    next_due_at: datetime


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about a schedule that has come due."""

    fired: list[datetime]
    skipped: list[datetime]
    next_due_at: datetime | None
    """None: it never comes due again. Not later than now: there are more, for another pass."""


def plan(pending: Pending, now: datetime, late_after: timedelta, walk: int = WALK) -> Plan:
    """Decide on the due times up to `now`, at most `walk` of them, by the misfire policy."""
    name, timing = pending.name, pending.timing
    due: list[datetime] = []
    rest = timing.after(pending.next_due_at)
    following: datetime | None = pending.next_due_at
    while following is not None and fire_at(name, timing, following) <= now and len(due) < walk:
        due.append(following)
        following = next(rest, None)
    if following is not None and fire_at(name, timing, following) <= now:
        # So many were missed that more than one pass is needed: the latest ones come later.
        kept = walk // 2
        return Plan([], due[:kept], due[kept])
    late: list[datetime] = []
    on_time: list[datetime] = []
    for time in due:
        is_late = now - fire_at(name, timing, time) > late_after
        (late if is_late else on_time).append(time)
    made_up = _made_up(pending, late, on_time)
    return Plan(sorted([*made_up, *on_time]), late[: len(late) - len(made_up)], following)


def _made_up(pending: Pending, late: list[datetime], on_time: list[datetime]) -> list[datetime]:
    """The missed due times that a message is sent for after all: always the latest ones."""
    match pending.misfire:
        case "skip":
            return []
        case "once":
            return [] if on_time else late[-1:]
        case "all":
            return late[-pending.misfire_limit :]


def due_text(moment: datetime) -> str:
    """A moment by RFC 3339, in UTC, as messages and ids hold it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def fire_id(name: str, due_at: datetime) -> UUID:
    """The envelope's id of a due time: the same whoever makes it, so two of it are one message."""
    return uuid5(NAMESPACE, f"{name}/{due_text(due_at)}")


def trigger_id(name: str, request_id: UUID) -> UUID:
    """The envelope's id of a request to send it out of turn."""
    return uuid5(NAMESPACE, f"{name}/{request_id}")


def render(data: Any, due_at: datetime) -> Any:
    """The data of the message of a due time: its texts (not its names) with the time filled in."""
    if isinstance(data, str):
        return data.replace(PLACEHOLDER, due_text(due_at))
    if isinstance(data, dict):
        return {name: render(inner, due_at) for name, inner in data.items()}
    if isinstance(data, list):
        return [render(inner, due_at) for inner in data]
    return data
