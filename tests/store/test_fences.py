"""Nothing is written under a lease that has ended, however the sweep and the command interleave.

A sweep is held open between its write and its commit while the command is sent: the command must
wait for it and then find the lease ended. And the other way round: a command whose transaction is
open keeps the sweep from ending the lease that it has just renewed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import httpx
import pytest

from app.services import Services
from app.settings import load
from app.wiring import open_services
from tests.conftest import environment, serve_in_process
from tests.driver import Held
from tests.store.sweeps import Gate, end_due, lapse, picture, settled, until_blocked

Command = Callable[[Held], Awaitable[httpx.Response]]

# As an instance at work does each second: what nobody could have said in time is not late.
TICK = "UPDATE service_ticks SET last_tick_at = clock_fact()"

COMMANDS: dict[str, Command] = {
    "start": lambda held: held.start(),
    "heartbeat": lambda held: held.beat(progress_percent=7),
    "heartbeat_with_a_new_phase": lambda held: held.beat(phase="executing"),
    "complete": lambda held: held.complete(result={"exit_code": 0}),
    "append_log": lambda held: held.log(b"late\n", 0),
    "issue_ticket": lambda held: held.try_ticket(b"other"),
    "record_output": lambda held: held.output("plan", held.artifact_id),
    "record_evidence": lambda held: held.evidence(artifact_id=held.artifact_id),
}
LOOKS_BEFORE_IT_WRITES = {
    "append_log": 1,
    "issue_ticket": 3,
    "record_output": 4,
    "record_evidence": 4,
}
"""Transactions of a command that only read, before the one that writes."""


@pytest.fixture(scope="module")
async def services(worker_database, objects, issuer) -> AsyncIterator[Services]:
    """Without a grace for logs, so that they are fenced like everything else."""
    variables = environment(worker_database, objects, issuer, LEASES__LOG_GRACE_SECONDS=0)
    async with open_services(load(variables)) as opened:
        yield opened


@pytest.fixture(scope="module")
async def shared_http(services) -> AsyncIterator[httpx.AsyncClient]:
    async with serve_in_process(services) as client:
        yield client


@pytest.fixture
async def sweeping(database_url) -> AsyncIterator[asyncpg.Connection]:
    """The sweep's own connection."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
def hold(control, make_runner, sql) -> Callable[..., Awaitable[Held]]:
    async def hold_(job_type: str, *, started: bool) -> Held:
        await sql.execute(TICK)
        kind = "verification" if job_type.startswith("verify") else "ssh"
        runner = await make_runner(runner_kind=kind, capabilities=[job_type]).register()
        await control.create(job_type=job_type)
        held = await runner.start() if started else await runner.claim()
        held.artifact_id = await held.upload(b"uploaded before")
        return held

    return hold_


LEASES = {
    "not_started": ("ssh.command.run", False, "leased"),
    "started_and_resumable": ("verify.http", True, "running"),
    "started": ("ssh.command.run", True, "lost"),
}


@pytest.mark.parametrize("lease", LEASES)
@pytest.mark.parametrize("command", COMMANDS)
async def test_command_behind_an_uncommitted_expiry_writes_nothing(
    command, lease, hold, services, sweeping, sql
):
    job_type, started, status_afterwards = LEASES[lease]
    held = await hold(job_type, started=started)
    await lapse(sql, held.id)

    async with sweeping.transaction():
        assert await end_due(sweeping, services, held) == 1
        answer = asyncio.create_task(COMMANDS[command](held))
        await until_blocked(sql)
        swept = await picture(sweeping)
    refusal = await answer

    assert refusal.status_code == 409, refusal.text
    assert refusal.json()["reason"] == "lease-expired"
    assert refusal.json()["action"] == "stop"
    assert refusal.json()["attempt"]["status"] == status_afterwards
    assert await picture(sql) == swept


@pytest.mark.parametrize("lease", LEASES)
@pytest.mark.parametrize("command", COMMANDS)
async def test_command_after_an_expiry_writes_nothing(command, lease, hold, services, sql):
    job_type, started, status_afterwards = LEASES[lease]
    held = await hold(job_type, started=started)
    await lapse(sql, held.id)
    async with sql.transaction():
        assert await end_due(sql, services, held) == 1
    swept = await picture(sql)

    refusal = await COMMANDS[command](held)

    assert (refusal.status_code, refusal.json()["reason"]) == (409, "lease-expired")
    assert refusal.json()["attempt"]["status"] == status_afterwards
    assert await picture(sql) == swept


@pytest.mark.parametrize("command", COMMANDS)
async def test_command_under_an_expired_lease_leaves_the_next_holder_alone(
    command, hold, services, sql, make_runner
):
    held = await hold("verify.http", started=True)
    await lapse(sql, held.id)
    async with sql.transaction():
        assert await end_due(sql, services, held) == 1
    other = await make_runner(runner_kind="verification", capabilities=["verify.http"]).register()
    await other.start()
    before = await picture(sql)

    refusal = await COMMANDS[command](held)

    assert (refusal.status_code, refusal.json()["reason"]) == (409, "lease-expired")
    assert await picture(sql) == before


@pytest.mark.parametrize("lease", LEASES)
@pytest.mark.parametrize("command", COMMANDS)
async def test_sweep_behind_an_uncommitted_command_does_not_end_its_lease(
    command, lease, hold, services, sweeping, sql, monkeypatch, control
):
    job_type, started, _ = LEASES[lease]
    held = await hold(job_type, started=started)
    await lapse(sql, held.id)
    gate = Gate(services, monkeypatch, after=LOOKS_BEFORE_IT_WRITES.get(command, 0))

    answer = asyncio.create_task(COMMANDS[command](held))
    await gate.reached.wait()
    async with sweeping.transaction():
        sweep = asyncio.create_task(end_due(sweeping, services, held))
        await settled(sweep, sql)
        gate.opened.set()
        accepted = await answer
        ended = await sweep

    assert accepted.is_success, accepted.text
    assert ended == 0
    [lease_row] = await control.list_of(held.attempt_id, "leases")
    assert lease_row["status"] == ("released" if command == "complete" else "active")
    assert "lease_expired" not in await control.event_types(held.attempt_id)
    assert not await sql.fetchval(
        "SELECT count(*) FROM runner_leases WHERE status = 'active' AND expires_at <= clock_now()"
    )


@pytest.mark.parametrize("job_type", ["ssh.command.run", "verify.http"])
async def test_sweep_that_looked_before_a_completion_leaves_its_outcome_alone(
    job_type, hold, services, sql, control
):
    held = await hold(job_type, started=True)
    await lapse(sql, held.id)
    assert (await held.complete()).status_code == 200
    before = await picture(sql)

    async with sql.transaction():
        ended = await end_due(sql, services, held)

    assert ended == 0
    assert await picture(sql) == before
    assert await control.event_types(held.attempt_id) == [
        "created",
        "leased",
        "started",
        "succeeded",
    ]


async def test_two_sweeps_at_once_end_a_lease_once(hold, services, sweeping, sql, control):
    held = await hold("ssh.command.run", started=True)
    await lapse(sql, held.id)

    async with sweeping.transaction():
        first = await end_due(sweeping, services, held)
        async with sql.transaction():
            second = await end_due(sql, services, held)

    assert (first, second) == (1, 0)
    assert (await control.event_types(held.attempt_id))[3:] == ["lease_expired", "lost"]
