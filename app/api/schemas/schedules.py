"""What callers send and get about schedules, and about who runs them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from app.api.schemas.control import Answer, Page
from app.domain.commands import Command
from app.domain.schedules import Misfire


class Schedule(Answer):
    """A schedule: a message that is sent at its times."""

    name: str
    """Its name."""
    cron: str | None
    """The cron expression; null: it has one single time."""
    time_zone: str
    """The place whose clock the expression speaks of."""
    at: datetime | None
    """The single time; null: it has a cron expression."""
    to: str
    """The handler that gets the message."""
    data: dict[str, Any]
    """What the handler gets; `{{due_at}}` in its texts becomes the due time."""
    misfire: Misfire
    """What is made of due times that were missed."""
    misfire_limit: int
    """Messages at most for missed due times."""
    jitter_seconds: int
    """Each message goes out up to so long after its due time."""
    version: int
    """Counts its changes from 1."""
    next_due_at: datetime | None
    """When it comes due next; null: paused, or over."""
    next_fire_at: datetime | None
    """When that message goes out: the due time and its share of the jitter."""
    last_due_at: datetime | None
    """The due time that was settled last; null: none yet."""
    paused_at: datetime | None
    """Since when it is paused; null: it is not."""
    paused_by: str | None
    """Who paused it."""
    created_at: datetime
    """When it was created."""
    updated_at: datetime
    """When its definition was changed last."""
    updated_by: str
    """Who changed it last."""


class ScheduleDetail(Schedule):
    """A schedule with its coming times."""

    upcoming: list[datetime]
    """The next due times, at most five; empty while it is paused."""


class SchedulePage(Page):
    """Schedules by name."""

    items: list[Schedule]
    """The schedules of this page."""


class TriggerSchedule(Command):
    """Send a schedule's message now."""

    request_id: UUID
    """Made by the caller: a repeat with the same one sends nothing further."""


class Fire(Answer):
    """A line of a schedule's history: a message, or due times that were skipped."""

    id: UUID
    """The id of the message's envelope, the same whoever sends it."""
    due_at: datetime
    """The due time, or the time of the trigger; the first one of those that were skipped."""
    kind: Literal["due", "trigger"]
    """Whether its time had come, or somebody triggered it."""
    outcome: Literal["fired", "skipped"]
    """Whether there is a message."""
    fired_at: datetime
    """When this was settled."""
    term: int | None
    """The leader's term under which that happened; null: a trigger."""
    triggered_by: str | None
    """Who triggered it."""
    skipped_until: datetime | None
    """The last one of the due times that were skipped."""
    skipped_count: int | None
    """How many were skipped."""
    sent_at: datetime | None
    """When the message was sent; null: it waits, or there is none."""
    sent_as: str | None
    """The message's id at Pub/Sub, or what its handler made of it: `done`, `duplicate`,
    `overtaken`, `dead-letter`."""


class FirePage(Page):
    """A schedule's history, newest first."""

    items: list[Fire]
    """The lines of this page."""


class Leader(Answer):
    """The instance that runs the sweeps."""

    holder: UUID
    """Made at the start of its process."""
    label: str
    """What its settings call it: a region or a zone."""
    term: int
    """Grows with every election."""
    since: datetime
    """When it was elected."""
    renewed_at: datetime
    """When it last proved itself."""
    expires_at: datetime
    """When it is replaced unless it proves itself again."""


class LeaderTerm(Answer):
    """A term of a leader, past or present."""

    term: int
    """Its number."""
    holder: UUID
    """Who held it."""
    label: str
    """What that instance's settings called it."""
    from_at: datetime
    """When it began."""
    until_at: datetime | None
    """When it ended; null: it goes on."""
    ended_by: Literal["resignation", "expiry"] | None
    """Whether it was handed over, or ran out."""
    gap_seconds: float | None
    """From the last proof of the leader before to the begin of this term."""


class SweepReport(Answer):
    """What is known of a sweep, whoever ran it."""

    name: str
    """Its name, as in the metrics."""
    term: int
    """The term under which it ran last."""
    interval_seconds: float
    """How often it runs."""
    last_run_at: datetime | None
    """When its last good pass ended; null: there was none yet."""
    last_run_seconds: float | None
    """How long that pass took."""
    last_done: int | None
    """What that pass dealt with."""
    runs: int
    """Good passes of all times."""
    done: int
    """What they dealt with."""
    failures: int
    """Failed passes of all times."""
    failing: int
    """Failed passes in a row up to now."""
    failed_at: datetime | None
    """When the last one failed."""
    last_error: str | None
    """Why: the `reason` of an error, or the kind of a fault; never its text."""
    age_seconds: float | None
    """Since its last good pass."""
    lag_seconds: float
    """How far behind: the time by which it is overdue, and the age of what it left due.

    Where that age is not known, it is the time for which each pass has left something to do.
    """


class Outbox(Answer):
    """Messages of schedules that wait to be sent."""

    waiting: int
    """How many."""
    oldest_seconds: float | None
    """Since when the oldest waits."""
    last_reason: str | None
    """Why one of them was put off."""


class Scheduler(Answer):
    """Who runs the sweeps, and how they are doing: the same from every instance."""

    leader: Leader | None
    """The leader; null: nobody leads at this moment."""
    sweeps: list[SweepReport]
    """The sweeps, by name."""
    outbox: Outbox
    """What schedules have sent and is not there yet."""
    terms: list[LeaderTerm]
    """The last twenty terms, newest first."""
