"""What callers do with schedules. Each is one transaction, and each may be repeated."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import orjson

from app.domain import jsontext
from app.domain.errors import ScheduleNotFound
from app.domain.schedules import (
    PutSchedule,
    Timing,
    fire_at,
    first_due,
    render,
    trigger_id,
)
from app.services import Services
from app.store import schedules
from app.store.database import Connection
from app.store.schedules import Draft, Fire, NewFire, Schedule


async def get_schedule(services: Services, name: str) -> Schedule:
    """The schedule. Raises ScheduleNotFound."""
    return _there(await services.database.run(lambda conn: schedules.find(conn, name)))


async def put_schedule(
    services: Services, name: str, command: PutSchedule, by: str
) -> tuple[Schedule, bool]:
    """Create or replace the schedule; True: created. The same again changes nothing.

    Its next time stays as it is unless its timing changes; a paused one stays paused.
    """

    async def put(conn: Connection) -> tuple[Schedule, bool]:
        found = await schedules.lock(conn, name)
        if found is None:
            draft = _draft(name, command, await _next(conn, name, command.timing), by)
            if (created := await schedules.create_once(conn, draft)) is not None:
                return created, True
            found = _there(await schedules.lock(conn, name))
        if _is(found, command):
            return found, False
        following = found.next_due_at, found.next_fire_at
        if found.timing != command.timing and found.paused_at is None:
            following = await _next(conn, name, command.timing)
        return await schedules.replace(conn, _draft(name, command, following, by)), False

    return await services.database.run(put)


async def delete_schedule(services: Services, name: str) -> None:
    """Remove the schedule; what it fired is still sent. Raises ScheduleNotFound."""
    if not await services.database.run(lambda conn: schedules.remove(conn, name)):
        raise ScheduleNotFound


async def pause_schedule(services: Services, name: str, by: str) -> Schedule:
    """Let it come due no more; a paused one stays as it is. Raises ScheduleNotFound."""

    async def pause(conn: Connection) -> Schedule | None:
        return await schedules.pause(conn, name, by) or await schedules.find(conn, name)

    return _there(await services.database.run(pause))


async def resume_schedule(services: Services, name: str) -> Schedule:
    """Let it come due again: what fell into the pause is not made up for.

    Only a single time that passed meanwhile is settled by its misfire policy. Raises
    ScheduleNotFound.
    """

    async def resume(conn: Connection) -> Schedule | None:
        found = await schedules.lock(conn, name)
        if found is None or found.paused_at is None:
            return found
        if found.at is not None and found.last_due_at is not None:
            return await schedules.resume(conn, name, None, None)
        return await schedules.resume(conn, name, *await _next(conn, name, found.timing))

    return _there(await services.database.run(resume))


async def trigger_schedule(services: Services, name: str, request_id: UUID, by: str) -> Fire:
    """Send its message now, once for each request id, even while it is paused.

    Raises ScheduleNotFound.
    """

    async def trigger(conn: Connection) -> Fire | None:
        fire_id = trigger_id(name, request_id)
        if (known := await schedules.find_fire(conn, fire_id)) is not None:
            return known
        found = _there(await schedules.lock(conn, name))
        now = await schedules.now(conn)
        data = jsontext.dumps(render(orjson.loads(found.data), now))
        fire = NewFire(fire_id, name, now, found.to, data)
        made = await schedules.trigger_once(conn, fire, request_id, by)
        return made or await schedules.find_fire(conn, fire_id)

    fire = await services.database.run(trigger)
    assert fire is not None  # noqa: S101 - made by this request or by its repeat
    return fire


def _there(found: Schedule | None) -> Schedule:
    if found is None:
        raise ScheduleNotFound
    return found


async def _next(
    conn: Connection, name: str, timing: Timing
) -> tuple[datetime | None, datetime | None]:
    """The first due time from the database's now on, and when its message goes out."""
    due_at = first_due(timing, await schedules.now(conn))
    return due_at, None if due_at is None else fire_at(name, timing, due_at)


def _draft(
    name: str,
    command: PutSchedule,
    following: tuple[datetime | None, datetime | None],
    by: str,
) -> Draft:
    return Draft(
        name=name,
        timing=command.timing,
        to=command.to,
        data=jsontext.dumps(command.data),
        misfire=command.misfire,
        misfire_limit=command.misfire_limit,
        next_due_at=following[0],
        next_fire_at=following[1],
        by=by,
    )


def _is(found: Schedule, command: PutSchedule) -> bool:
    """Whether the schedule is what is asked for."""
    return (
        found.timing == command.timing
        and (found.to, found.misfire, found.misfire_limit)
        == (command.to, command.misfire, command.misfire_limit)
        and found.data == jsontext.dumps(command.data)
    )
