"""A migration that dies in the middle leaves nothing behind, and is simply run again."""

import asyncio
import json
import os
import signal
import sys
from uuid import uuid4

import asyncpg
import pytest

from app.store import migrate

KILLED = {"migrate.mid_step": {"action": "kill", "times": 1}}


@pytest.fixture
async def empty_database(postgres) -> str:
    name = f"empty_{uuid4().hex}"
    admin = await asyncpg.connect(postgres.admin_dsn)
    await admin.execute(f"CREATE DATABASE {name} OWNER execution_plane")
    await admin.close()
    return postgres.dsn.rsplit("/", 1)[0] + f"/{name}"


async def run_migrate(dsn: str, **failpoints: object) -> int:
    environment = {
        **os.environ,
        "EXECUTION_PLANE_DATABASE__URL": dsn,
        "EXECUTION_PLANE_TESTING__ALLOW_FAILPOINTS": "true",
        "EXECUTION_PLANE_TESTING__FAILPOINTS": json.dumps(failpoints),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app", "migrate", env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


async def objects_of(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace "
        "AND relname !~ '_[0-9]{6,8}' ORDER BY 1"
    )
    await connection.close()
    return [row["relname"] for row in rows]


async def test_migration_killed_before_its_commit_changed_nothing_and_is_repeated(
    empty_database, worker_database
):
    died = await run_migrate(empty_database, **KILLED)
    left = await objects_of(empty_database)
    again = await run_migrate(empty_database)

    assert died == -signal.SIGKILL
    assert set(left) <= {"alembic_version", "alembic_version_pkc"}
    assert again == 0
    assert await asyncio.to_thread(migrate.current, empty_database) == migrate.head()
    assert await objects_of(empty_database) == await objects_of(worker_database)
