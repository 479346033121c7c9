"""The auditor: silent about honest lives, and not about any fault."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest
from click.testing import CliRunner

from app.cli import cli
from app.commands import audit
from app.store import audit_scheduler
from app.store.migrate import ROOT
from tests.lifecycle.kept_faults import KEPT_FAULTS
from tests.lifecycle.world import AGAIN, ONCE, breaches, new_key

LEASE = 30


@pytest.fixture
async def lives(world, clock) -> dict[str, str]:
    """Attempts in all states, with every exception that honest lives bring along."""
    shared = new_key()
    done = await world.running(concurrency_key=new_key())
    await done.beat(phase="executing")
    await done.log(b"one\n", 0)
    artifact_id = await done.upload(b"what it made")
    output = (await done.output("made", artifact_id)).json()["output"]
    await done.evidence(artifact_id=artifact_id, output_id=output["id"])
    await done.complete()
    await done.log(b"its last words\n", 4)
    kept = {"reason": "case 17"}
    await world.operator.call("POST", f"/v1/attempts/{done.attempt_id}:hold", json=kept)

    lost = await world.running()
    again = await world.running(AGAIN, timeout_seconds=7200, concurrency_key=shared)
    await clock.forward(LEASE)
    await world.sweep()
    await lost.complete("failed")
    for _ in range(5):
        await (await (await world.runner(AGAIN)).claim()).post("release")
        await clock.forward(300)
    running = await (await world.runner(AGAIN)).start()
    await running.beat(phase="executing")
    waiting = await world.leased(AGAIN)
    await waiting.post("release")
    other = await world.running()
    await other.beat()
    queued = await world.create(queue_timeout_seconds=1000)
    keyed = await world.create(concurrency_key=shared)
    return {
        "done": done.attempt_id,
        "lost": lost.attempt_id,
        "running": again.attempt_id,
        "lease": running.id,
        "waiting": waiting.attempt_id,
        "other": other.attempt_id,
        "queued": queued,
        "keyed": keyed,
    }


@pytest.fixture
async def intruder(postgres, worker_database) -> AsyncIterator[asyncpg.Connection]:
    """Somebody whom no trigger, key or rule can stop; what they do is undone."""
    name = worker_database.rsplit("/", 1)[1]
    connection = await asyncpg.connect(postgres.admin_dsn.rsplit("/", 1)[0] + f"/{name}")
    undone = connection.transaction()
    await undone.start()
    await connection.execute("SET LOCAL session_replication_role = replica")
    for row in await connection.fetch(
        "SELECT conrelid::regclass AS table, conname AS name FROM pg_constraint "
        "WHERE contype = 'c' AND conrelid IN ('execution_attempts'::regclass, "
        "'runner_leases'::regclass) AND conislocal"
    ):
        await connection.execute(f'ALTER TABLE {row["table"]} DROP CONSTRAINT "{row["name"]}"')
    for index in ("runner_leases_one_active_idx", "execution_attempts_one_per_key_idx"):
        await connection.execute(f"DROP INDEX {index}")
    yield connection
    await undone.rollback()
    await connection.close()


def attempt(change: str, of: str) -> str:
    return f"UPDATE execution_attempts SET {change} WHERE id = '{{{of}}}'"


def lease(change: str, of: str, number: int = 1) -> str:
    return (
        f"UPDATE runner_leases SET {change} WHERE attempt_id = '{{{of}}}' "
        f"AND lease_number = {number}"
    )


def event(change: str, of: str, kind: str) -> str:
    return (
        f"UPDATE attempt_events SET {change} WHERE attempt_id = '{{{of}}}' "
        f"AND event_type = '{kind}'"
    )


def forget(of: str, kind: str) -> str:
    return f"DELETE FROM attempt_events WHERE attempt_id = '{{{of}}}' AND event_type = '{kind}'"


def invent(of: str, kind: str, payload: str = "'{{}}'::jsonb") -> str:
    """One more event at the end of a timeline."""
    return (
        "INSERT INTO attempt_events (id, attempt_id, event_number, event_type, payload, "
        "feed_epoch, feed_xid, created_at) SELECT gen_random_uuid(), id, last_event_number + 1, "
        f"'{kind}', {payload}, last_feed_epoch, last_feed_xid, last_event_at "
        f"FROM execution_attempts WHERE id = '{{{of}}}'"
    )


def copy_lease(of: str, changed: str) -> str:
    """A further lease like the last one of an attempt."""
    return (
        "INSERT INTO runner_leases SELECT (r).* FROM (SELECT jsonb_populate_record(l, "
        f"{changed}) AS r FROM runner_leases l WHERE l.attempt_id = '{{{of}}}' "
        "ORDER BY l.lease_number DESC LIMIT 1) s"
    )


ONE_MORE = "jsonb_build_object('id', gen_random_uuid(), 'lease_number', l.lease_number + 1)"
FIRST_LEASE = (
    "(SELECT jsonb_build_object('lease_id', id) FROM runner_leases "
    "WHERE attempt_id = '{running}' AND lease_number = 1)"
)
HOLD_OF_DONE = (
    "INSERT INTO concurrency_holds SELECT concurrency_key, id, 1, leased_at, finished_at "
    "FROM execution_attempts WHERE id = '{done}'"
)
OF_ANOTHER_OPERATION = (
    "INSERT INTO artifact_refs SELECT (r).* FROM (SELECT jsonb_populate_record(a, "
    "jsonb_build_object('id', gen_random_uuid(), 'operation_id', gen_random_uuid())) AS r "
    "FROM artifact_refs a LIMIT 1) s"
)

FAULTS: dict[str, list[str]] = {
    "ends-once": [
        forget("done", "succeeded"),
        invent("done", "failed"),
        invent("running", "lost"),
        event("event_type = 'failed'", "done", "succeeded"),
    ],
    "legal-steps": [
        event("event_number = 100 - event_number", "running", "leased"),
        event("event_type = 'leased'", "done", "started"),
        invent("queued", "started"),
        invent("queued", "lost"),
        invent("done", "leased"),
    ],
    "gives-status": [
        attempt("status = 'leased', started_at = NULL", "running"),
        attempt("status = 'failed'", "done"),
        forget("running", "started"),
    ],
    "times": [
        attempt("leased_at = created_at - interval '1 s'", "running"),
        attempt("started_at = NULL", "running"),
        attempt("finished_at = NULL", "done"),
        attempt("finished_at = started_at - interval '1 s'", "done"),
        attempt("failure_category = 'internal'", "done"),
        attempt("failure_category = NULL", "lost"),
        attempt("leased_at = created_at", "queued"),
    ],
    "creation": [
        attempt("priority = priority + 1", "done"),
        attempt("operation_id = gen_random_uuid()", "running"),
        attempt("job_type = 'ssh.other'", "queued"),
        attempt("created_at = created_at - interval '1 s'", "done"),
    ],
    "created-once": [forget("queued", "created"), invent("queued", "created")],
    "event-numbers": [
        attempt("last_event_number = last_event_number + 1", "done"),
        attempt("last_event_at = last_event_at + interval '1 s'", "done"),
        event("event_number = 9", "done", "started"),
        event("event_number = 1", "done", "leased"),
        forget("running", "heartbeat"),
        invent("done", "late_result"),
    ],
    "feed-order": [
        event("feed_xid = '1'", "done", "succeeded"),
        event("feed_epoch = 0", "done", "succeeded"),
        event("created_at = created_at - interval '1 s'", "done", "succeeded"),
    ],
    "epoch-numbers": [
        "UPDATE feed_epochs SET number = number + 7",
        "UPDATE feed_epochs SET previous_end_xid = '1' WHERE number = 1",
        "INSERT INTO feed_epochs SELECT max(number) + 1, 'x', 1, NULL, now() FROM feed_epochs",
    ],
    "epoch-ends": [
        event("feed_epoch = 99", "done", "succeeded"),
        "INSERT INTO feed_epochs SELECT max(number) + 1, 'x', 1, '1', now() FROM feed_epochs",
    ],
    "feed-place": [
        attempt("last_feed_xid = '1'", "done"),
        attempt("last_feed_epoch = 0", "done"),
    ],
    "feed-begun": [event("feed_xid = '1000000000000'", "done", "succeeded")],
    "feed-bound": [
        "WITH clock AS (UPDATE feed_epochs SET facts_until = NULL) "
        + event("created_at = created_at + interval '3 h'", "done", "created"),
    ],
    "orphans": [
        "DELETE FROM execution_attempts WHERE id = '{queued}'",
        "UPDATE attempt_heartbeats SET attempt_id = gen_random_uuid()",
    ],
    "one-active": [copy_lease("running", ONE_MORE)],
    "lease-of-open": [
        lease("status = 'active', released_at = NULL", "done"),
        attempt("status = 'queued'", "running"),
    ],
    "lease-numbers": [
        lease("lease_number = 99", "done"),
        lease("lease_number = 99", "running", 3),
        attempt("last_lease_number = 0", "done"),
        "DELETE FROM runner_leases WHERE attempt_id = '{lost}'",
        "UPDATE runner_leases SET started_at = created_at WHERE attempt_id = '{running}'",
    ],
    "in-turn": [
        lease("released_at = released_at + interval '1 h'", "running"),
        lease("released_at = NULL", "running", 2),
    ],
    "session": [
        "UPDATE runner_instances SET session_id = gen_random_uuid()",
        "DELETE FROM runner_instances",
    ],
    "capacity": ["UPDATE runner_statuses SET capacity_total = 0, updated_at = 'epoch'"],
    "lease-told": [
        lease("status = 'revoked'", "lost"),
        lease("completion_digest = NULL", "done"),
        lease("status = 'expired'", "done"),
        forget("lost", "lease_expired"),
        forget("done", "leased"),
        invent("running", "lease_expired", FIRST_LEASE),
    ],
    "nothing-after": [
        invent("running", "heartbeat", FIRST_LEASE),
        invent("running", "output_recorded", FIRST_LEASE),
        invent("running", "succeeded", FIRST_LEASE),
        "UPDATE attempt_heartbeats SET created_at = created_at + interval '1 min'",
    ],
    "logs-in-grace": ["UPDATE raw_log_refs SET created_at = created_at + interval '141 s'"],
    "log-streams": [
        "UPDATE raw_log_refs SET stream_offset = stream_offset + 1 WHERE arrival_number = 2",
        "UPDATE raw_log_refs SET raw_size = raw_size + 1",
        "UPDATE raw_log_refs SET byte_size = byte_size - 1",
        "UPDATE raw_log_refs SET masked = false",
        "DELETE FROM raw_log_refs WHERE arrival_number = 1",
        "DELETE FROM raw_log_refs WHERE arrival_number = 2",
        "DELETE FROM raw_log_refs",
        "DELETE FROM log_streams",
        "UPDATE log_streams SET next_offset = next_offset + 1",
    ],
    "log-places": [
        "UPDATE raw_log_refs SET object_offset = object_offset + 1",
        "UPDATE raw_log_refs SET artifact_ref_id = (SELECT id FROM artifact_refs LIMIT 1)",
        "UPDATE raw_log_refs SET artifact_ref_id = gen_random_uuid()",
        "UPDATE artifact_refs SET attempt_id = '{lost}'",
        "UPDATE artifact_refs SET byte_size = byte_size - 1",
    ],
    "log-arrival": ["UPDATE raw_log_refs SET arrival_number = arrival_number + 10"],
    "log-cut-off": [
        "UPDATE log_streams SET truncated_at = clock_fact()",
        invent("done", "log_truncated"),
    ],
    "late-words": [
        forget("lost", "late_result"),
        event("attempt_id = '{done}'", "lost", "late_result"),
        lease("late_word_at = clock_fact()", "running"),
        lease("status = 'active'", "lost"),
        lease("completion_digest = 'x'", "lost"),
    ],
    "stop-confirmed": [
        attempt("unconfirmed_leases = 0", "running"),
        attempt("unconfirmed_leases = 1", "done"),
        attempt("stop_confirmed = false", "done"),
        attempt("stop_confirmed = NULL", "done"),
        attempt("stop_confirmed = true", "running"),
    ],
    "one-a-key": ["UPDATE execution_attempts SET concurrency_key = 'k' WHERE status = 'running'"],
    "held": [
        "DELETE FROM concurrency_holds",
        "UPDATE concurrency_holds SET lease_number = lease_number - 1",
        "UPDATE concurrency_holds SET attempt_id = '{other}'",
    ],
    "hold-justified": [
        "UPDATE concurrency_holds SET attempt_id = '{keyed}'",
        "UPDATE concurrency_holds SET concurrency_key = 'another'",
        "UPDATE concurrency_holds SET attempt_ended_at = clock_fact()",
        HOLD_OF_DONE,
    ],
    "overdue": [
        attempt("limit_at = clock_now() - interval '21 s'", "queued"),
        lease("expires_at = clock_now() - interval '21 s'", "other"),
    ],
    "goes-on": [
        attempt("claimable = false", "waiting"),
        attempt("claimable = false", "queued"),
        attempt("claimable = true", "other"),
    ],
    "limits": [
        attempt("limit_at = NULL", "running"),
        attempt("limit_at = limit_at + interval '1 s'", "other"),
        attempt("limit_at = NULL", "queued"),
        attempt("limit_at = clock_fact()", "done"),
    ],
    "points-within": [
        "UPDATE runner_output_refs SET attempt_id = '{other}'",
        "UPDATE runner_output_refs SET artifact_ref_id = gen_random_uuid()",
        "UPDATE runner_output_refs SET digest = 'sha256:' || repeat('0', 64)",
        "UPDATE evidence_refs SET artifact_ref_id = gen_random_uuid()",
        "UPDATE evidence_refs SET output_ref_id = gen_random_uuid()",
        "UPDATE raw_log_refs SET attempt_id = '{other}'",
    ],
    "artifacts-made": [
        "UPDATE artifact_uploads SET closed_reason = NULL, closed_at = NULL",
        "UPDATE artifact_uploads SET closed_reason = 'expired'",
        "UPDATE artifact_uploads SET verified_at = NULL",
        "UPDATE artifact_uploads SET byte_size = byte_size + 1",
        "UPDATE artifact_uploads SET key = key || '-2'",
    ],
    "one-object": [
        "UPDATE artifact_refs SET key = 'the same'",
        OF_ANOTHER_OPERATION,
    ],
    "recorded-told": [
        forget("done", "output_recorded"),
        forget("done", "evidence_recorded"),
        forget("done", "artifact_created"),
        event("payload = payload - 'output_id'", "done", "output_recorded"),
    ],
}
FAULTS |= KEPT_FAULTS
EACH = [(name, number) for name in FAULTS for number in range(len(FAULTS[name]))]


async def found(connection: asyncpg.Connection, world) -> dict[str, list[tuple[str, str]]]:
    terms = audit.Terms.of(world.services.settings.leases)
    return breaches(await audit.run_checks(connection, terms))


def test_every_check_is_proven_by_a_fault():
    # Proven in tests/scheduler/test_audit.py and tests/callbacks/test_audit.py.
    elsewhere = {name for name, _, _ in audit_scheduler.STATEMENTS}
    names = {check.name for check in audit.CHECKS} - elsewhere

    assert set(FAULTS) == {name for name in names if not name.startswith("callback-")}


def test_every_check_stands_in_the_reference():
    page = (ROOT / "docs" / "reference" / "audit.md").read_text()

    missing = [
        check.name for check in audit.CHECKS if f"| `{check.name}` | {check.sentence} |" not in page
    ]
    assert missing == []


async def test_auditor_says_nothing_about_honest_lives(world, lives, intruder):
    assert await found(intruder, world) == {}


async def test_auditor_finds_every_fault_that_somebody_plants(world, lives, intruder):
    missed = []
    for name, number in EACH:
        fault = intruder.transaction()
        await fault.start()
        planted = await intruder.execute(FAULTS[name][number].format(**lives))
        assert not planted.endswith(" 0"), (name, number)
        if name not in await found(intruder, world):
            missed.append((name, FAULTS[name][number]))
        await fault.rollback()

    assert missed == []


@pytest.mark.parametrize("kind", ["limit", "lease", "hold"])
async def test_what_is_overdue_only_because_we_were_away_is_no_breach(world, clock, kind):
    held = await world.running(concurrency_key=new_key(), timeout_seconds=60)
    if kind == "hold":
        await clock.forward(LEASE)
        await world.sweep()
        await held.complete()
    await clock.forward(1000, serving=False)
    away = await world.audit()
    await world.tick()
    await clock.forward(LEASE + 19)
    back = await world.audit()
    await clock.forward(2)

    late = await world.audit()

    assert (away, back) == ({}, {})
    assert set(late) <= {"overdue"}
    assert bool(late) == (kind != "hold")


async def test_at_most_so_many_violations_are_named(world, lives, intruder):
    await intruder.execute("DELETE FROM attempt_events WHERE event_type = 'created'")
    terms = audit.Terms.of(world.services.settings.leases)

    findings = await audit.run_checks(intruder, terms, limit=3)

    assert max(len(one.violations) for one in findings) == 3


async def test_auditor_counts_started_leases_by_the_setting(world, lives, intruder):
    terms = replace(audit.Terms.of(world.services.settings.leases), max_started_leases=1)

    assert set(breaches(await audit.run_checks(intruder, terms))) == {"lease-numbers"}


# --- the command ----------------------------------------------------------------------------------


async def run(url: str, *arguments: str, **environment: str):
    """The command, with nothing in its environment but what it needs."""
    emptied = {name: None for name in os.environ if name.startswith("EXECUTION_PLANE_")}
    variables = {**emptied, "EXECUTION_PLANE_DATABASE__URL": url, **environment}
    return await asyncio.to_thread(CliRunner().invoke, cli, ["audit", *arguments], env=variables)


async def test_command_says_that_all_holds(world, lives, worker_database):
    shown = await run(worker_database)

    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert len(lines) == len(audit.CHECKS) + 1
    held = [" ".join(line.split()) for line in lines]
    assert "holds one-active An attempt has at most one active lease." in held
    assert lines[-1] == f"{len(audit.CHECKS)} checks, none broken"


async def test_command_names_what_is_broken_and_fails(world, worker_database, sql):
    attempt_id = await world.create(ONCE)
    await sql.execute("UPDATE execution_attempts SET claimable = false")

    shown = await run(worker_database)
    as_json = await run(worker_database, "--output", "json")
    await sql.execute("UPDATE execution_attempts SET claimable = true")

    assert (shown.exit_code, as_json.exit_code) == (1, 1)
    assert f"        {attempt_id}: queued without a lease, and nobody can claim it" in shown.output
    document = json.loads(as_json.output)
    [broken] = [check for check in document["checks"] if check["violations"]]
    assert (document["broken"], broken["name"]) == (1, "goes-on")
    assert broken["violations"][0]["subject"] == attempt_id


async def test_command_writes_nothing_and_takes_no_lock_that_the_service_would_meet(
    world, worker_database, sql
):
    held = await world.running()
    running = await world.row(held.attempt_id)
    async with sql.transaction():
        await sql.execute("SELECT FROM execution_attempts FOR UPDATE")
        shown = await run(worker_database)

    assert shown.exit_code == 0
    assert await world.row(held.attempt_id) == running


async def test_command_takes_the_settings_of_the_leases_into_account(world, lives, worker_database):
    shown = await run(worker_database, EXECUTION_PLANE_LEASES__MAX_STARTED_LEASES="1")

    assert shown.exit_code == 1
    assert "broken  lease-numbers" in shown.output


async def test_command_without_a_database_says_so(postgres):
    nowhere = await run("postgresql://nobody:nothing@127.0.0.1:9/nothing")
    foreign = await run(postgres.admin_dsn)

    assert (nowhere.exit_code, foreign.exit_code) == (5, 1)
    assert nowhere.output.startswith("The database does not answer: ")
    assert foreign.output.startswith("This is no database of this version of the service: ")
