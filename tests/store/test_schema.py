"""The schema: as declared, as specified, and the same on the oldest and the newest server."""

import asyncio
import importlib
import os
import pkgutil
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest
import sqlalchemy as sa

import app.store
from app.domain.ids import new_id
from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.embedded.guarded import clean_environment
from app.embedded.postgres import program
from app.store import migrate, partitions, revision, tables
from app.store.schema_sql import FUNCTIONS, TRIGGERS
from app.wiring import open_services
from tests.conftest import serve_in_process
from tests.driver import Control, RunnerClient
from tests.store import debian_postgres
from tests.store.debian_postgres import DebianPostgres
from tests.store.sweeps import expire

INSTALLED = debian_postgres.is_installed()
SERVERS = ["newest", "debian_15"] if INSTALLED else ["newest"]

MakeDatabase = Callable[[], Awaitable[str]]


def test_postgresql_15_is_there_where_the_whole_suite_must_run():
    assert INSTALLED or os.environ.get("CI") != "true", "apt-get install postgresql-15"


@pytest.fixture(scope="session")
async def debian(tmp_path_factory) -> AsyncIterator[DebianPostgres | None]:
    server = DebianPostgres(tmp_path_factory.mktemp("postgres15"))
    if INSTALLED:
        await server.start()
    yield server
    await server.stop()


@pytest.fixture
def make_empty(postgres, debian, request) -> MakeDatabase:
    """Empty databases on the server that the test asks for; the newest when it asks for none."""
    name = getattr(request, "param", "newest")
    server = debian if name == "debian_15" else postgres

    async def make() -> str:
        database = f"empty_{uuid4().hex}"
        async with connection_to(server.admin_dsn) as admin:
            await admin.execute(f"CREATE DATABASE {database} OWNER execution_plane")
        return server.dsn.rsplit("/", 1)[0] + f"/{database}"

    return make


on_every_server = pytest.mark.parametrize("make_empty", SERVERS, indirect=True)


@asynccontextmanager
async def connection_to(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def upgrade(dsn: str) -> str:
    await asyncio.to_thread(migrate.upgrade, dsn)
    return dsn


async def make_declared(dsn: str) -> str:
    """What `store/tables.py` and `store/schema_sql.py` declare, without any migration."""

    def create(connection: sa.Connection) -> None:
        tables.metadata.create_all(connection)
        for statement in (*FUNCTIONS, *TRIGGERS):
            connection.exec_driver_sql(statement)
        connection.commit()

    await asyncio.to_thread(migrate.run_with_connection, dsn, create)
    return dsn


async def dump(dsn: str) -> str:
    """The whole schema as text, without what differs from one dump to the next."""
    process = await asyncio.to_thread(
        subprocess.run,
        [
            program("pg_dump"),
            *("--schema-only", "--no-owner", "--no-privileges", "--exclude-table=alembic_version"),
            dsn,
        ],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    kept = [
        line
        for line in process.stdout.splitlines()
        if line
        and not line.startswith(("--", "\\restrict", "\\unrestrict"))
        and "SET (pg_attver=" not in line  # PostgreSQL 15.20 counts it, per database
    ]
    return "\n".join(kept)


@on_every_server
async def test_migrations_make_exactly_the_declared_schema(make_empty):
    migrated = await dump(await upgrade(await make_empty()))
    declared = await dump(await make_declared(await make_empty()))

    assert "CREATE TABLE public.execution_attempts" in migrated
    assert "CREATE TRIGGER execution_attempts_move" in migrated
    assert migrated == declared


@on_every_server
async def test_migrations_go_down_to_nothing_and_up_again(make_empty):
    dsn = await upgrade(await make_empty())
    before = await dump(dsn)
    async with connection_to(dsn) as sql, sql.transaction():
        await partitions.ensure(sql, days_ahead=3)

    await asyncio.to_thread(migrate.downgrade, dsn, "base")

    async with connection_to(dsn) as sql:
        left = await sql.fetch(
            "SELECT relname AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace "
            "AND relname NOT LIKE 'alembic_version%' UNION ALL "
            "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace UNION ALL "
            "SELECT typname FROM pg_type WHERE typnamespace = 'public'::regnamespace "
            "AND typname NOT LIKE '%alembic_version'"
        )
    assert left == []
    assert await asyncio.to_thread(migrate.current, dsn) is None

    await upgrade(dsn)
    assert await dump(dsn) == before
    assert await asyncio.to_thread(migrate.current, dsn) == migrate.head()


async def test_instances_that_migrate_at_once_do_it_once(make_empty):
    dsn = await make_empty()

    applied = await asyncio.gather(*(asyncio.to_thread(migrate.upgrade, dsn) for _ in range(3)))

    there_are = len(list((migrate.ROOT / "alembic" / "versions").glob("*.py")))
    assert sorted(applied) == [0, 0, there_are]


@on_every_server
async def test_life_of_an_attempt_on_every_server(make_empty, make_settings, issuer):
    dsn = await upgrade(await make_empty())
    mint = issuer[0].mint
    async with (
        open_services(make_settings(database=dsn)) as services,
        serve_in_process(services) as http,
        connection_to(dsn) as sql,
    ):
        control = Control(http, mint(ACCOUNTS["control-plane"], AUDIENCE))
        runner = RunnerClient(http, mint(ACCOUNTS["runner"], AUDIENCE))
        await runner.register(runner_kind="verification", capabilities=["verify.*"])
        attempt = await control.create(job_type="verify.http")
        lapsed = await runner.start()
        await expire(sql, services, lapsed)
        await sql.execute("UPDATE execution_attempts SET backoff_until = NULL")
        held = await runner.claim()

        answers = [
            await held.start(),
            await held.beat(),
            await held.beat(phase="executing", progress_percent=50, message="half way"),
            await held.log(b"one\n", 0),
            await held.log(b"two\n", 4, final=True),
            await held.complete(result={"exit_code": 0}),
        ]

        assert [answer.status_code for answer in answers] == [200] * 6
        assert (await control.get(attempt["id"]))["status"] == "succeeded"
        assert (await control.read_log(attempt["id"])).content == b"one\ntwo\n"
        assert len(await control.list_of(attempt["id"], "heartbeats")) == 2
        assert [row["status"] for row in await control.list_of(attempt["id"], "leases")] == [
            "expired",
            "released",
        ]
        listed = await control.call("GET", "/v1/attempts", params={"status": "succeeded"})
        assert [item["id"] for item in listed.json()["items"]] == [attempt["id"]]
        assert await control.event_types(attempt["id"]) == [
            "created",
            "leased",
            "started",
            "lease_expired",
            "leased",
            "heartbeat",
            "succeeded",
        ]


# --- statements -----------------------------------------------------------------------------------

_NAMED = re.compile(r"-- (\w+)\.(\w+)\n")
_TEMPLATE = re.compile(r"\{[a-z_]+\}")


def statements() -> Iterator[tuple[str, str, str]]:
    """Every statement of the store: module, constant, text; templates of statements left out."""
    for found in pkgutil.iter_modules(app.store.__path__):
        module = importlib.import_module(f"app.store.{found.name}")
        for constant, text in vars(module).items():
            ours = constant.startswith("_") and constant.isupper() and isinstance(text, str)
            if ours and text.lstrip().startswith("--") and not _TEMPLATE.search(text):
                yield found.name, constant, text.lstrip()


STATEMENTS = list(statements())


def test_every_statement_begins_with_its_name():
    names = [(module, _NAMED.match(text)) for module, _, text in STATEMENTS]

    assert len(STATEMENTS) > 50
    assert [text for _, _, text in STATEMENTS if not _NAMED.match(text)] == []
    assert [found[0] for module, found in names if found and found[1] != module] == []
    assert len({found[0] for _, found in names if found}) == len(STATEMENTS)


@on_every_server
async def test_every_statement_prepares_against_the_schema(make_empty):
    refused = {}

    async with connection_to(await upgrade(await make_empty())) as sql:
        for module, constant, text in STATEMENTS:
            try:
                await sql.prepare(text)
            except asyncpg.PostgresError as error:
                refused[f"{module}.{constant}"] = str(error)

    assert refused == {}


# --- the specification ----------------------------------------------------------------------------

MANDATORY_INDEXES = [
    ("execution_attempts", ["operation_id", "plan_node_id", "created_at"], False),
    ("execution_attempts", ["status", "priority", "created_at"], False),
    ("execution_attempts", ["idempotency_key"], True),
    ("runner_leases", ["attempt_id", "status"], False),
    ("runner_leases", ["runner_instance_id", "status"], False),
    ("attempt_heartbeats", ["attempt_id", "created_at"], False),
    ("raw_log_refs", ["attempt_id", "stream"], False),
    ("runner_output_refs", ["attempt_id", "name"], True),
    ("artifact_refs", ["digest"], False),
    ("attempt_events", ["attempt_id", "created_at"], False),
]

KINDS = {"ansible", "kubernetes", "helm", "opentofu", "ssh", "verification"}
FIELDS = {
    "execution_attempts": {
        "id": "uuid",
        "operation_id": "uuid",
        "plan_id": "uuid",
        "plan_node_id": "uuid",
        "node_run_id": "uuid",
        "requested_by_service": "string",
        "idempotency_key": "string",
        "job_type": "string",
        "job_spec_ref": "jsonb",
        "status": {
            *("queued", "leased", "running", "succeeded"),
            *("failed", "cancelled", "timed_out", "lost"),
        },
        "failure_category": {
            *("validation", "runner_unavailable", "target_unreachable", "permission_denied"),
            *("command_failed", "timeout", "cancelled", "heartbeat_lost", "internal"),
        },
        "runner_kind": KINDS,
        "runner_instance_id": "string",
        "priority": "integer",
        "timeout_seconds": "integer",
        "created_at": "timestamp",
        "leased_at": "timestamp",
        "started_at": "timestamp",
        "finished_at": "timestamp",
    },
    "runner_instances": {
        "id": "string",
        "runner_kind": KINDS,
        "version": "string",
        "capabilities": "list",
        "zone": "string",
        "labels": "jsonb",
        "registered_at": "timestamp",
        "last_seen_at": "timestamp",
    },
    "runner_leases": {
        "id": "uuid",
        "attempt_id": "uuid",
        "runner_instance_id": "string",
        "lease_token_hash": "string",
        "status": {"active", "released", "expired", "revoked"},
        "expires_at": "timestamp",
        "created_at": "timestamp",
        "released_at": "timestamp",
    },
    "attempt_heartbeats": {
        "id": "uuid",
        "attempt_id": "uuid",
        "runner_instance_id": "string",
        "phase": {
            *("pulling_artifacts", "resolving_secrets", "executing"),
            *("uploading_artifacts", "completing"),
        },
        "progress_percent": "integer",
        "message": "string",
        "created_at": "timestamp",
    },
    "raw_log_refs": {
        "id": "uuid",
        "attempt_id": "uuid",
        "stream": {"stdout", "stderr", "event_stream", "system"},
        "artifact_ref_id": "uuid",
        "byte_size": "integer",
        "line_count": "integer",
        "masked": "boolean",
        "created_at": "timestamp",
    },
    "runner_output_refs": {
        "id": "uuid",
        "attempt_id": "uuid",
        "name": "string",
        "output_type": {
            *("json", "yaml", "text", "archive", "binary", "resource_refs", "evidence_bundle"),
        },
        "artifact_ref_id": "uuid",
        "schema_ref": "string",
        "digest": "string",
        "created_at": "timestamp",
    },
    "evidence_refs": {
        "id": "uuid",
        "attempt_id": "uuid",
        "output_ref_id": "uuid",
        "evidence_type": {
            *("assertion", "probe", "log_excerpt", "resource_snapshot", "signed_report"),
        },
        "status": {"passed", "failed", "inconclusive"},
        "subject_ref": "string",
        "artifact_ref_id": "uuid",
        "recorded_at": "timestamp",
    },
    "artifact_refs": {
        "id": "uuid",
        "storage": {"s3", "minio"},
        "bucket": "string",
        "key": "string",
        "content_type": "string",
        "digest": "string",
        "byte_size": "integer",
        "retention_class": {"short", "normal", "long", "legal_hold"},
        "created_at": "timestamp",
    },
    "runner_statuses": {
        "runner_instance_id": "string",
        "runner_kind": "string",
        "status": {"ready", "busy", "draining", "unhealthy", "offline"},
        "capacity_total": "integer",
        "capacity_used": "integer",
        "last_error": "string",
        "updated_at": "timestamp",
    },
    "attempt_events": {
        "id": "uuid",
        "attempt_id": "uuid",
        "event_type": {
            *("created", "leased", "started", "heartbeat", "artifact_created"),
            *("succeeded", "failed", "cancelled", "timed_out", "lost"),
        },
        "payload": "jsonb",
        "created_at": "timestamp",
    },
}
TYPES = {
    "uuid": {"uuid"},
    "string": {"text"},
    "integer": {"integer", "bigint"},
    "timestamp": {"timestamp with time zone"},
    "jsonb": {"jsonb"},
    "boolean": {"boolean"},
    "list": {"ARRAY"},
}


@pytest.mark.parametrize(("table", "columns", "unique"), MANDATORY_INDEXES)
async def test_mandatory_index_exists(table, columns, unique, sql):
    found = await sql.fetch(
        """
        SELECT i.indisunique, (SELECT array_agg(a.attname::text ORDER BY k.place)
            FROM unnest(i.indkey) WITH ORDINALITY k(number, place)
            JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number) AS columns
        FROM pg_index i WHERE i.indrelid = $1::text::regclass AND i.indisvalid
            AND i.indpred IS NULL
        """,
        table,
    )

    assert (columns, unique) in [(row["columns"], row["indisunique"]) for row in found]


@pytest.mark.parametrize("table", FIELDS)
async def test_table_has_the_specified_fields_and_values(table, sql):
    rows = await sql.fetch(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = $1",
        table,
    )
    found = {row["column_name"]: row["data_type"] for row in rows}

    for field, wanted in FIELDS[table].items():
        if isinstance(wanted, set):
            assert found[field] == "text"
            assert await values_of(sql, table, field) >= wanted, field
        else:
            assert found[field] in TYPES[wanted], field


async def values_of(sql: asyncpg.Connection, table: str, column: str) -> set[str]:
    """What the column's CHECK allows."""
    check = await sql.fetchval(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid = $1::text::regclass AND conname = $1 || '_' || $2 || '_check'",
        table,
        column,
    )
    return set(re.findall(r"'(\w+)'::text", check))


@pytest.mark.parametrize(
    ("job_type", "kind"),
    [
        ("ansible.playbook.run", "ansible"),
        ("kubernetes.manifest.apply", "kubernetes"),
        ("helm.install", "helm"),
        ("opentofu.apply", "opentofu"),
        ("ssh.command.run", "ssh"),
        ("verify.http", "verification"),
    ],
)
async def test_specified_job_type_fixes_its_runner_kind(job_type, kind, control, sql):
    attempt = await control.create(job_type=job_type)

    assert attempt["runner_kind"] == kind
    for other in KINDS - {kind}:
        with pytest.raises(asyncpg.CheckViolationError):
            await insert_copy(sql, attempt["id"], other)


async def insert_copy(sql: asyncpg.Connection, attempt_id: str, kind: str) -> None:
    row = dict(await sql.fetchrow("SELECT * FROM execution_attempts WHERE id = $1", attempt_id))
    row |= {"id": new_id(), "idempotency_key": uuid4().hex, "runner_kind": kind}
    places = ", ".join(f"${number + 1}" for number in range(len(row)))
    await sql.execute(
        f"INSERT INTO execution_attempts ({', '.join(row)}) VALUES ({places})", *row.values()
    )


async def test_a_fact_is_never_older_than_the_fact_before_it(sql):
    later = datetime.now(UTC) + timedelta(hours=1)

    assert await sql.fetchval("SELECT fact_after($1)", later) == later
    assert await sql.fetchval("SELECT fact_after(now() - interval '1 h') >= now()")


def test_the_service_knows_the_newest_migration():
    assert migrate.head() == revision.HEAD
