"""Lets schedules come due: their next time and the message of this one are one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import orjson

from app import failpoints
from app.domain import jsontext
from app.domain.schedules import Pending, Plan, fire_at, fire_id, plan, render
from app.loops.loop import Result
from app.services import Services
from app.store import schedules
from app.store.database import Connection
from app.store.schedules import NewFire, Schedule, Step

_BATCH = 500


@dataclass(frozen=True, slots=True)
class _Work:
    """What a pass is going to write."""

    steps: list[Step]
    fires: list[NewFire]
    unfinished: bool
    """Some schedule has missed more due times than one pass looks at."""


class FireSchedules:
    """One pass settles a batch of schedules that have come due, under the leader's term.

    A pass that is cut off wrote all of a batch or nothing of it. Two leaders cannot settle one due
    time twice: the schedule moves on once, and the envelope's id follows from name and time.
    """

    name = "fire_schedules"
    interval_seconds = 0.5
    leader_only = True

    async def run_once(self, services: Services) -> Result:
        """Settle at most a batch."""
        now, due = await services.database.run(lambda conn: schedules.list_due(conn, _BATCH))
        if now is None:
            return Result(0)
        if failpoints.ARMED:
            await failpoints.hit("schedule.after_due")
        late_after = timedelta(seconds=services.settings.scheduler.late_after_seconds)
        # In a thread: computing the times of a batch must not hold up requests.
        work = await asyncio.to_thread(_prepare, due, now, late_after)

        async def write(conn: Connection) -> int:
            term = await services.leadership.prove(conn)
            return await schedules.fire(conn, work.steps, work.fires, term)

        fired = await services.database.run(write)
        services.metrics.schedules_fired.inc(fired)
        if failpoints.ARMED:
            await failpoints.hit("schedule.after_fire")
        return Result(
            fired,
            more=len(due) == _BATCH or work.unfinished,
            behind_seconds=max((now - _next_fire(one)).total_seconds() for one in due),
        )


def _next_fire(schedule: Schedule) -> datetime:
    assert schedule.next_fire_at is not None  # noqa: S101 - it was found by it
    return schedule.next_fire_at


def _prepare(due: Sequence[Schedule], now: datetime, late_after: timedelta) -> _Work:
    work = _Work([], [], unfinished=False)
    unfinished = False
    for schedule in due:
        assert schedule.next_due_at is not None  # noqa: S101 - it was found by it
        pending = Pending(
            schedule.name,
            schedule.timing,
            schedule.misfire,
            schedule.misfire_limit,
            schedule.next_due_at,
        )
        planned = plan(pending, now, late_after)
        step = _step(schedule, schedule.next_due_at, planned)
        unfinished = unfinished or (step.next_fire_at is not None and step.next_fire_at <= now)
        work.steps.append(step)
        work.fires.extend(_fires(schedule, planned))
    return _Work(work.steps, work.fires, unfinished)


def _step(schedule: Schedule, due_at: datetime, planned: Plan) -> Step:
    following = planned.next_due_at
    return Step(
        schedule.name,
        schedule.version,
        due_at,
        following,
        None if following is None else fire_at(schedule.name, schedule.timing, following),
    )


def _fires(schedule: Schedule, planned: Plan) -> list[NewFire]:
    data = orjson.loads(schedule.data)
    made = [
        NewFire(
            fire_id(schedule.name, due_at),
            schedule.name,
            due_at,
            schedule.to,
            jsontext.dumps(render(data, due_at)),
        )
        for due_at in planned.fired
    ]
    if planned.skipped:
        first, last = planned.skipped[0], planned.skipped[-1]
        skipped = NewFire(
            fire_id(schedule.name, first), schedule.name, first, schedule.to, None, last,
            len(planned.skipped),
        )  # fmt: skip
        made.append(skipped)
    return made
