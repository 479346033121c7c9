"""What may happen to an attempt and to a lease: the same for raw SQL and for every caller."""

import re
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from app.domain.lifecycle import (
    LEASE_TRANSITIONS,
    TERMINAL,
    TRANSITIONS,
    LeaseStatus,
    Outcome,
    Status,
    sources,
)
from app.main import create_app
from app.store.schema_sql import ILLEGAL_MOVE, IMMUTABLE
from tests.driver import Held
from tests.store.sweeps import expire

MOVES = {(source, target) for source in TRANSITIONS for target in TRANSITIONS[source]}

# Columns that a status needs, so that no CHECK can be the reason of a refusal.
COLUMNS_OF = {
    Status.QUEUED: "leased_at = NULL, started_at = NULL, runner_instance_id = NULL",
    Status.LEASED: "leased_at = clock_fact(), started_at = NULL, runner_instance_id = 'r'",
    Status.RUNNING: "leased_at = clock_fact(), started_at = clock_fact(), runner_instance_id = 'r'",
}
NOT_ENDED = (
    "finished_at = NULL, stop_confirmed = NULL, failure_category = NULL, "
    "placement_class_id = (SELECT id FROM placement_classes LIMIT 1)"
)
ENDED = (
    "leased_at = clock_fact(), started_at = clock_fact(), finished_at = clock_fact(), "
    "stop_confirmed = true, claimable = false, limit_at = NULL, placement_class_id = NULL, "
    "failure_category = "
)


def move_to(target: Status) -> str:
    """An UPDATE of everything that the target status needs."""
    if target in TERMINAL:
        category = "NULL" if target is Status.SUCCEEDED else "'internal'"
        columns = ENDED + category
    else:
        columns = f"{COLUMNS_OF[target]}, {NOT_ENDED}"
    return f"UPDATE execution_attempts SET status = '{target}', {columns} WHERE id = $1"


def path_to(target: Status) -> list[Status]:
    """The shortest legal way from the beginning."""
    way = [target]
    while way[0] is not Status.QUEUED:
        way.insert(0, sources(way[0])[0])
    return way[1:]


@pytest.fixture
def attempt_in(control, sql) -> Callable[[Status], Awaitable[UUID]]:
    """An attempt that raw SQL brought into this status by legal moves."""

    async def make(status: Status) -> UUID:
        attempt_id = UUID((await control.create())["id"])
        for step in path_to(status):
            await sql.execute(move_to(step), attempt_id)
        return attempt_id

    return make


async def refusal_of(sql: asyncpg.Connection, statement: str, *values: Any) -> str | None:
    """The SQLSTATE that a statement is refused with, None when it is done; undone either way."""
    transaction = sql.transaction()
    await transaction.start()
    try:
        await sql.execute(statement, *values)
    except asyncpg.PostgresError as error:
        return error.sqlstate
    finally:
        await transaction.rollback()
    return None


@pytest.mark.parametrize("source", Status)
async def test_raw_sql_can_make_exactly_the_moves_of_the_table(source, attempt_in, sql):
    attempt_id = await attempt_in(source)

    refusals = {
        target: await refusal_of(sql, move_to(target), attempt_id)
        for target in Status
        if target is not source
    }

    assert refusals == {
        target: None if target in TRANSITIONS[source] else ILLEGAL_MOVE for target in refusals
    }


@pytest.mark.parametrize("status", TERMINAL)
async def test_terminal_attempt_cannot_end_again_in_the_same_way(status, attempt_in, sql):
    attempt_id = await attempt_in(status)

    refused = await refusal_of(sql, move_to(status), attempt_id)

    assert refused == IMMUTABLE


@pytest.mark.parametrize("status", Status)
async def test_attempt_can_only_be_inserted_as_queued(status, attempt_in, sql):
    attempt_id = await attempt_in(Status.QUEUED)
    row = dict(await sql.fetchrow("SELECT * FROM execution_attempts WHERE id = $1", attempt_id))
    row |= {"id": uuid4(), "idempotency_key": "another", "status": status}
    if status is not Status.QUEUED:
        now = row["created_at"]
        row |= {"leased_at": now, "started_at": now, "runner_instance_id": "r"}
    if status in TERMINAL:
        row |= {"finished_at": now, "stop_confirmed": True, "claimable": False, "limit_at": None}
        row["placement_class_id"] = None
        row |= {"failure_category": None if status is Status.SUCCEEDED else "internal"}

    places = ", ".join(f"${number + 1}" for number in range(len(row)))
    refused = await refusal_of(
        sql,
        f"INSERT INTO execution_attempts ({', '.join(row)}) VALUES ({places})",
        *row.values(),
    )

    assert refused == (None if status is Status.QUEUED else ILLEGAL_MOVE)


OTHER_VALUE = {
    "uuid": "gen_random_uuid()",
    "text": "'ssh.other'",
    "integer": "coalesce({column}, 1) + 1",
    "bigint": "coalesce({column}, 1) + 1",
    "boolean": "{column} IS NOT TRUE",
    "jsonb": "'{{\"other\": 1}}'",
    "timestamp with time zone": "clock_timestamp() + interval '1 h'",
    "xid8": "'99999999'",
}
"""A value that the column does not have, by its type."""

NEVER_CHANGE = {
    "id",
    "operation_id",
    "plan_id",
    "plan_node_id",
    "node_run_id",
    "requested_by_service",
    "idempotency_key",
    "request_digest",
    "job_type",
    "job_spec_ref",
    "runner_kind",
    "priority",
    "timeout_seconds",
    "queue_timeout_seconds",
    "placement",
    "concurrency_key",
    "created_at",
    "placement_class_id",  # but for becoming empty at the end, with the status
}
CHANGE_AFTER_THE_END = {
    # the event counters move with every event that a late word causes
    "last_event_number",
    "last_event_at",
    "last_feed_epoch",
    "last_feed_xid",
    # whether the work has stopped may become known late
    "stop_confirmed",
    "unconfirmed_leases",
}


async def columns_of(sql: asyncpg.Connection, table: str) -> dict[str, str]:
    rows = await sql.fetch(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = $1",
        table,
    )
    return {row["column_name"]: row["data_type"] for row in rows}


async def changeable(sql: asyncpg.Connection, attempt_id: UUID) -> set[str]:
    """The columns of this attempt that no trigger protects."""
    free = set()
    for column, kind in (await columns_of(sql, "execution_attempts")).items():
        value = OTHER_VALUE[kind].format(column=column)
        statement = f"UPDATE execution_attempts SET {column} = {value} WHERE id = $1"
        if await refusal_of(sql, statement, attempt_id) not in {IMMUTABLE, ILLEGAL_MOVE}:
            free.add(column)
    return free


@pytest.mark.parametrize("status", [Status.QUEUED, Status.LEASED, Status.RUNNING])
async def test_what_an_attempt_was_created_with_never_changes(status, attempt_in, sql):
    attempt_id = await attempt_in(status)

    free = await changeable(sql, attempt_id)

    every = set(await columns_of(sql, "execution_attempts"))
    assert free | {"status"} == every - NEVER_CHANGE | {"status"}


@pytest.mark.parametrize("status", TERMINAL)
async def test_of_a_terminal_attempt_only_its_bookkeeping_may_change(status, attempt_in, sql):
    attempt_id = await attempt_in(status)

    free = await changeable(sql, attempt_id)

    assert free == CHANGE_AFTER_THE_END


@pytest.fixture
def lease_in(control, make_runner, sql) -> Callable[[LeaseStatus], Awaitable[UUID]]:
    async def make(status: LeaseStatus) -> UUID:
        await control.create()
        held = await (await make_runner().register()).claim()
        if status is not LeaseStatus.ACTIVE:
            await sql.execute(move_lease_to(status), UUID(held.id))
        return UUID(held.id)

    return make


def move_lease_to(status: LeaseStatus) -> str:
    released = "NULL" if status is LeaseStatus.ACTIVE else "clock_fact()"
    return f"UPDATE runner_leases SET status = '{status}', released_at = {released} WHERE id = $1"


@pytest.mark.parametrize("source", LeaseStatus)
async def test_lease_ends_once_and_never_comes_back(source, lease_in, sql):
    lease_id = await lease_in(source)

    refusals = {
        target: await refusal_of(sql, move_lease_to(target), lease_id)
        for target in LeaseStatus
        if target is not source
    }

    assert refusals == {
        target: None if target in LEASE_TRANSITIONS[source] else ILLEGAL_MOVE for target in refusals
    }


@pytest.mark.parametrize("status", LeaseStatus)
async def test_lease_can_only_be_inserted_as_active(status, lease_in, sql):
    lease_id = await lease_in(LeaseStatus.RELEASED)
    row = dict(await sql.fetchrow("SELECT * FROM runner_leases WHERE id = $1", lease_id))
    row |= {"id": uuid4(), "lease_number": 2, "status": status}
    if status is LeaseStatus.ACTIVE:
        row["released_at"] = None

    places = ", ".join(f"${number + 1}" for number in range(len(row)))
    refused = await refusal_of(
        sql, f"INSERT INTO runner_leases ({', '.join(row)}) VALUES ({places})", *row.values()
    )

    assert refused == (None if status is LeaseStatus.ACTIVE else ILLEGAL_MOVE)


# --- the same over the API ------------------------------------------------------------------------

Verb = Callable[[Held], Awaitable[httpx.Response]]

VERBS: dict[str, Verb] = {
    "start": lambda held: held.start(),
    "heartbeat": lambda held: held.beat(phase="executing"),
    **{
        f"complete as {outcome}": lambda held, outcome=outcome: held.complete(outcome)
        for outcome in Outcome
    },
}


def status_after(status: Status, verb: str) -> Status:
    """What the table says; completions of a lease that had not started begin it first."""
    if status is Status.LEASED and verb == "start":
        return Status.RUNNING
    if status in {Status.LEASED, Status.RUNNING} and verb.startswith("complete"):
        return Status(verb.removeprefix("complete as "))
    return status


@pytest.fixture
def held_in(control, make_runner, sql, services) -> Callable[[Status], Awaitable[Held]]:
    """A lease whose attempt went into this status by the callers' own verbs."""

    async def make(status: Status) -> Held:
        await control.create()
        held = await (await make_runner().register()).claim()
        if status is Status.LEASED:
            return held
        await held.start()
        if status is Status.LOST:
            await expire(sql, services, held)
        elif status is not Status.RUNNING:
            await held.complete(status.value)
        assert await control.status(held.attempt_id) == status
        return held

    return make


HELD = [status for status in Status if status is not Status.QUEUED]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("status", HELD)
async def test_verbs_of_the_api_move_an_attempt_only_as_the_table_says(
    status, verb, held_in, control
):
    held = await held_in(status)

    answer = await VERBS[verb](held)

    expected = status_after(status, verb)
    types = await control.event_types(held.attempt_id)
    endings = [name for name in types if name in TERMINAL]
    assert await control.status(held.attempt_id) == expected
    assert endings == ([expected.value] if expected in TERMINAL else [])
    assert types.count("started") == (0 if expected is Status.LEASED else 1)
    if status in TERMINAL and verb != f"complete as {status}":
        assert answer.status_code == 409
        assert answer.json()["action"] == "stop"
        assert answer.json()["attempt"]["status"] == status
    else:
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("status", HELD)
async def test_attempt_that_is_not_queued_is_not_claimed_again(
    status, held_in, control, make_runner
):
    held = await held_in(status)
    other = await make_runner().register()

    assert await other.claim_all() == []

    assert await control.status(held.attempt_id) == status


@pytest.mark.parametrize("verb", VERBS)
async def test_queued_attempt_has_no_lease_to_act_under(verb, control, runner):
    attempt = await control.create()
    await runner.register()
    nobodys = {"lease": {"id": str(uuid4())}, "attempt": attempt, "lease_token": "lt_x"}
    held = Held(runner, nobodys | {"continuation": False})

    answer = await VERBS[verb](held)

    assert (answer.status_code, answer.json()["reason"]) == (404, "lease-not-found")
    assert await control.status(attempt["id"]) == "queued"


async def test_queued_attempt_becomes_leased_by_a_claim(control, runner):
    attempt = await control.create()
    await runner.register()

    [held] = await runner.claim_all()

    assert held.attempt["status"] == await control.status(attempt["id"]) == "leased"


@pytest.mark.parametrize("second", Outcome)
@pytest.mark.parametrize("first", Outcome)
async def test_first_completion_is_final_whatever_the_second_says(first, second, held_in, control):
    held = await held_in(Status.RUNNING)
    await held.complete(first.value)
    before = await control.get(held.attempt_id)

    answer = await held.complete(second.value)

    assert answer.status_code == (200 if first is second else 409)
    assert await control.get(held.attempt_id) == before


# --- one table ------------------------------------------------------------------------------------


async def test_check_trigger_and_document_name_the_statuses_of_the_table(services, sql):
    check = await sql.fetchval(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conname = 'execution_attempts_status_check'"
    )
    trigger = await sql.fetchval(
        "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'execution_attempts_move'"
    )
    document = create_app(services).openapi()["components"]["schemas"]["Status"]["enum"]

    in_check = re.findall(r"'(\w+)'::text", check)
    in_trigger = re.findall(r"old\.status <> '(\w+)'::text\) OR \(new\.status <> '(\w+)'", trigger)
    assert in_check == document == [status.value for status in Status]
    assert set(in_trigger) == {(source.value, target.value) for source, target in MOVES}


async def test_check_and_trigger_of_leases_name_the_statuses_of_the_table(sql):
    check = await sql.fetchval(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conname = 'runner_leases_status_check'"
    )
    trigger = await sql.fetchval(
        "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'runner_leases_move'"
    )

    in_trigger = re.findall(r"old\.status <> '(\w+)'::text\) OR \(new\.status <> '(\w+)'", trigger)
    assert re.findall(r"'(\w+)'::text", check) == [status.value for status in LeaseStatus]
    assert set(in_trigger) == {
        (source.value, target.value)
        for source in LEASE_TRANSITIONS
        for target in LEASE_TRANSITIONS[source]
    }


def test_the_table_is_the_one_of_the_specification():
    assert {
        ("queued", "leased"),
        ("leased", "running"),
        ("running", "succeeded"),
        ("running", "failed"),
        ("running", "cancelled"),
        ("running", "timed_out"),
        ("running", "lost"),
        ("leased", "lost"),
        ("queued", "cancelled"),
    } == MOVES
