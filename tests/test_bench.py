"""What benchmarks compare the service with cannot rot: each script leaves what a life leaves."""

import re
import tomllib
from pathlib import Path

import asyncpg
import pytest

from app.store.database import Database
from bench import aims, limits, whole
from bench.aims import Aim
from bench.life import Runner, prepare, record
from bench.pgbench import as_text, hot_settings, pgbench, render, run

ROOT = Path(__file__).parents[1]

# What is left of lives, without what differs from one to the next: ids, keys, tokens and times.
LEFT = """
SELECT a.status, a.job_type, a.placement, a.claimable, a.stop_confirmed, a.last_event_number,
    l.status AS lease, l.lease_number, l.progress_percent, l.last_sequence, l.token_key_id,
    l.started_at IS NOT NULL AS started, l.completion_digest,
    length(l.lease_token_hash) AS token, regexp_replace(a.request_digest, '[0-9a-f]{64}', 'hex'),
    l.expires_at - l.started_at > interval '29 s' AS renewed,
    (SELECT array_agg((e.event_number, e.event_type, (SELECT array_agg(k ORDER BY k)
        FROM jsonb_object_keys(e.payload) k))::text ORDER BY e.event_number)
        FROM attempt_events e WHERE e.attempt_id = a.id) AS events,
    (SELECT array_agg((h.progress_percent, h.phase, h.message)::text)
        FROM attempt_heartbeats h WHERE h.attempt_id = a.id) AS beats
FROM execution_attempts a LEFT JOIN runner_leases l ON l.attempt_id = a.id
WHERE a.runner_instance_id = $1
"""


@pytest.fixture
async def sql(database_url):
    connection = await asyncpg.connect(database_url)
    await prepare(connection)
    yield connection
    await connection.close()


async def left_by(sql, runner: Runner) -> list[str]:
    return [str(row) for row in await sql.fetch(LEFT, runner.id)]


@pytest.mark.parametrize(("created", "claimed"), [(1, 1), (8, 4)])
async def test_a_script_of_pgbench_leaves_what_the_commands_of_the_service_leave(
    sql, database_url, tmp_path, created, claimed
):
    first, second = [await Runner(zone).register(sql) for zone in ("z0", "z1")]
    rounds = [await record(sql, one, created, claimed) for one in (first, first, second)]
    by_commands = {one: set(await left_by(sql, one)) for one in (first, second)}
    await sql.execute("TRUNCATE execution_attempts CASCADE")

    script = render(rounds)
    settings = hot_settings(database_url)
    await run(database_url, script, tmp_path, "-t", "2", connections=2, settings=settings)

    for runner in (first, second):
        lives = await left_by(sql, runner)
        assert len(lives) == 2 * created
        assert set(lives) == by_commands[runner]
        assert all("status='succeeded'" in life for life in lives)


async def test_no_two_rounds_of_a_script_share_an_id_or_a_key(sql, database_url, tmp_path):
    script = await limits.rendered(sql, 2, 8, 4)
    await sql.execute("TRUNCATE execution_attempts CASCADE")

    await run(database_url, script, tmp_path, "-t", "3", connections=2)

    row = await sql.fetchrow(
        "SELECT count(*), count(DISTINCT idempotency_key), count(DISTINCT operation_id), "
        "count(DISTINCT request_digest) FROM execution_attempts"
    )
    assert set(row) == {2 * 3 * 8}


async def test_every_statement_of_a_script_is_one_of_the_recording_word_for_word(sql):
    runner = await Runner("z0").register(sql)
    rounds = [await record(sql, runner) for _ in range(2)]

    script = render([*rounds, rounds[0]])

    for step in rounds[0]:
        for statement in step.statements:
            parts = [re.escape(part) for part in re.split(r"\$\d+", statement.sql.strip())]
            assert re.search(r"(:\w+|NULL)".join(parts), script.text), statement.sql


async def test_the_plain_statements_leave_one_finished_job_a_round(sql, database_url, tmp_path):
    await sql.execute((ROOT / "bench" / "plain_tables.sql").read_text())
    try:
        script = limits.plain_script()
        await run(database_url, script, tmp_path, "-t", "3", connections=1)

        rows = await sql.fetch("SELECT status, progress, finished_at > created_at FROM plain_jobs")
        assert [tuple(row) for row in rows] == [("succeeded", 50, True)] * 3
    finally:
        await sql.execute("DROP TABLE plain_jobs")


async def test_pgbench_gets_the_settings_of_hot_transactions(make_settings, database_url):
    database = Database(make_settings().database)
    shown = {}

    async def show(conn):
        for name in hot_settings(database_url):
            shown[name] = await conn.fetchval("SELECT current_setting($1)", name)

    try:
        await database.run(show, pinned=True)
    finally:
        await database.close()

    assert shown["plan_cache_mode"] == "force_generic_plan"
    assert {"enable_seqscan", "jit", "statement_timeout"} <= set(shown)


def test_parameters_are_written_as_postgresql_reads_them():
    assert as_text(['a"b\\', None, "x,{y}"]) == '{"a\\"b\\\\",NULL,"x,{y}"}'


def test_the_whole_run_knows_programs_that_exist():
    names = [*whole.TIMED, *whole.OTHERS]

    assert [name for name in names if not (ROOT / "bench" / f"{name}.py").exists()] == []
    assert all("--seconds" in (ROOT / "bench" / f"{name}.py").read_text() for name in whole.TIMED)


def test_figures_are_handed_on_and_judged_by_their_bound(tmp_path, monkeypatch, capsys):
    path = tmp_path / "aims"
    monkeypatch.setenv(aims.VARIABLE, str(path))
    found = [
        Aim("a", 0.5, 0.5),
        Aim("b", 0.4, 0.5),
        Aim("c", 0.6, 0.5, at_least=False),
        Aim("d", None, 1),
    ]

    aims.tell(found[:2])
    aims.tell(found[2:])

    assert aims.noted(path) == found
    assert [aim.word for aim in found] == ["reached", "MISSED", "MISSED", "not measured"]
    assert capsys.readouterr().out.count("figures to reach") == 2


def test_what_is_compared_with_is_locked_by_itself_and_names_no_host():
    lock = (ROOT / "requirements-bench.lock").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {re.split(r"[\[<>=; ]", one)[0] for one in project["dependency-groups"]["bench"]}

    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))

    assert wanted <= set(pinned)
    assert "://" not in lock
    assert lock.count("--hash=sha256:") >= len(pinned)
    ordinary = [
        path.read_text() for path in ROOT.glob("requirements*.lock") if "bench" not in path.name
    ]
    assert not any(
        f"\n{name}==" in text for text in ordinary for name in ("procrastinate", "pgqueuer")
    )


def test_where_pgbench_is_missing_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setenv("PGBENCH", "/nowhere/pgbench")

    with pytest.raises(SystemExit, match="apt install postgresql"):
        pgbench()
