"""A command means the same over REST and over push: the same rows, ids and times left out."""

import base64
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest

from app.handlers import all_handlers
from app.store import tables
from tests.driver import Control, Held, RunnerClient, new_attempt

ATTEMPT = {
    **new_attempt(idempotency_key="one-and-only", concurrency_key="host-1", priority=7),
    "job_spec_ref": {"command": "uptime", "deep": [{"er": 1.5}, None, True, 2**60]},
    "placement": {"zone": "eu", "labels": {"network": "private"}},
}
PROFILE = {"id": "runner-1", "zone": "eu", "labels": {"network": "private"}}


@dataclass
class World:
    """What the commands below act in."""

    control: Control
    runner: RunnerClient
    held: Held | None = None

    @property
    def lease(self) -> dict[str, Any]:
        assert self.held is not None
        return {"lease_id": self.held.id, "lease_token": self.held.token}


@dataclass(frozen=True)
class Case:
    """One command: what must be there before, and the command itself in both forms."""

    stage: str
    rest: Callable[[World], Awaitable[httpx.Response]]
    data: Callable[[World], dict[str, Any]]


def status_report(sequence: int = 1) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "status": "busy",
        "capacity_total": 3,
        "last_error": "a\x00b",
    }


CASES = {
    "attempt.create": Case(
        "registered",
        lambda world: world.control.call("POST", "/v1/attempts", json=ATTEMPT),
        lambda _: ATTEMPT,
    ),
    "attempt.cancel": Case(
        "started",
        lambda world: world.control.call(
            "POST", f"/v1/attempts/{world.held.attempt_id}:cancel", json={"reason": "changed"}
        ),
        lambda world: {"attempt_id": world.held.attempt_id, "reason": "changed"},
    ),
    "runner.register": Case(
        "nothing",
        lambda world: world.runner.try_register(capacity_total=4),
        lambda world: {
            "runner_id": world.runner.id,
            "session_id": world.runner.session_id,
            "capacity_total": 4,
            **world.runner.profile,
        },
    ),
    "runner.report_status": Case(
        "registered",
        lambda world: world.runner.call(
            "PUT",
            f"/v1/runners/{world.runner.id}/status",
            json={"session_id": world.runner.session_id, **status_report()},
        ),
        lambda world: {
            "runner_id": world.runner.id,
            "session_id": world.runner.session_id,
            **status_report(),
        },
    ),
    "lease.heartbeat": Case(
        "started",
        lambda world: world.held.beat(phase="executing", progress_percent=5, message="m\x00"),
        lambda world: {
            **world.lease,
            "session_id": world.runner.session_id,
            "sequence": 1,
            "phase": "executing",
            "progress_percent": 5,
            "message": "m\x00",
        },
    ),
    "lease.complete": Case(
        "started",
        lambda world: world.held.complete(
            "failed", failure_message="no\x00", result={"exit_code": 1, "n\x00": [1.5]}
        ),
        lambda world: {
            **world.lease,
            "outcome": "failed",
            "failure_category": "command_failed",
            "failure_message": "no\x00",
            "result": {"exit_code": 1, "n\x00": [1.5]},
        },
    ),
    "lease.release": Case(
        "claimed",
        lambda world: world.held.post("release", {"reason": "going home"}),
        lambda world: {**world.lease, "reason": "going home"},
    ),
    "log.append": Case(
        "started",
        lambda world: world.held.log(b"\x00\xff\n", 0, final=True),
        lambda world: {
            **world.lease,
            "stream": "stdout",
            "offset": 0,
            "final": True,
            "data_base64": base64.b64encode(b"\x00\xff\n").decode(),
        },
    ),
}


async def arrange(stage: str, control: Control, runner: RunnerClient) -> World:
    world = World(control, runner)
    if stage == "nothing":
        return world
    await runner.register(capacity_total=4)
    if stage == "registered":
        return world
    await control.call("POST", "/v1/attempts", json=ATTEMPT)
    world.held = await runner.claim()
    if stage == "started":
        await world.held.start()
    return world


# What comes from the message itself, or stands for nothing but when and under which id.
_LEFT_OUT = {
    *("processed_messages", "message_failures", "leaders", "service_ticks", "feed_epochs"),
    "installation",
}
_CHANGING = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # ids
    r"|[0-9a-f]{64}"  # digests
    r"|\d{4}-\d\d-\d\d[T ][\d:.]+(Z|\+[\d:]+)?"  # times
    r"|test-[0-9a-f]{32}"  # the prefix of a worker's objects
)


def constant(value: Any) -> Any:
    """The value without its ids and times."""
    if isinstance(value, UUID):
        return "an id"
    if isinstance(value, datetime):
        return "a time"
    if isinstance(value, str):
        return _CHANGING.sub("…", value)
    return value


async def all_rows(sql: asyncpg.Connection) -> dict[str, list[dict[str, Any]]]:
    """Everything in the database; transaction ids left out."""
    found = {}
    for name in tables.metadata.tables.keys() - _LEFT_OUT:
        rows = [
            {column: constant(value) for column, value in row.items() if "xid" not in column}
            for row in await sql.fetch(f"SELECT * FROM {name}")
        ]
        found[name] = sorted(rows, key=str)
    versions = found.pop("placement_class_versions")
    assert versions
    return found


def test_every_handler_has_a_case_here():
    assert set(CASES) == set(all_handlers.build().names)


@pytest.mark.parametrize("command", CASES)
async def test_command_leaves_the_same_rows_over_rest_and_over_push(
    command, control, make_runner, pusher, sql
):
    case = CASES[command]

    world = await arrange(case.stage, control, make_runner(**PROFILE))
    over_rest = await case.rest(world)
    by_rest = await all_rows(sql)
    await empty(sql)
    world = await arrange(case.stage, control, make_runner(**PROFILE))
    over_push = await pusher.push(command, case.data(world))
    by_push = await all_rows(sql)

    assert over_rest.status_code in {200, 201, 202}, over_rest.text
    assert over_push.status_code == 204
    assert any(by_rest.values())
    assert by_push == by_rest


@pytest.mark.parametrize("command", CASES)
async def test_command_that_comes_over_both_ways_has_one_effect(
    command, control, make_runner, pusher, sql
):
    case = CASES[command]
    world = await arrange(case.stage, control, make_runner(**PROFILE))
    data = case.data(world)

    assert (await case.rest(world)).is_success
    before = await all_rows(sql)
    answer = await pusher.push(command, data, id=uuid4())

    assert answer.status_code == 204
    assert await all_rows(sql) == before


async def empty(sql: asyncpg.Connection) -> None:
    kept = _LEFT_OUT | {"placement_class_versions"}
    await sql.execute(f"TRUNCATE {', '.join(tables.metadata.tables.keys() - kept)}")
