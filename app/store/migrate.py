"""Migrations: Alembic over asyncpg, one lock for all instances that try at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from app import failpoints

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")
_LOCK = 7_302_771_540  # any number; only migrations of this service use it


def config() -> Config:
    """Alembic's configuration, independent of the working directory."""
    settings = Config()
    settings.set_main_option("script_location", str(ROOT / "alembic"))
    return settings


def upgrade(dsn: str, revision: str = "head") -> int:
    """Bring the database at `dsn` to `revision`; return how many migrations ran.

    Safe to call from many instances at once: the second waits for the first and then finds nothing
    to do. Blocks; call it in a thread from async code.
    """
    return run_with_connection(dsn, lambda connection: _migrate(connection, revision, up=True))


def downgrade(dsn: str, revision: str) -> int:
    """Take the database at `dsn` back to `revision` (`base`: an empty schema)."""
    return run_with_connection(dsn, lambda connection: _migrate(connection, revision, up=False))


def current(dsn: str) -> str | None:
    """The revision that the database is at; None for an empty one."""
    return run_with_connection(
        dsn, lambda connection: MigrationContext.configure(connection).get_current_revision()
    )


def head() -> str:
    """The newest revision that this code knows."""
    revision = ScriptDirectory.from_config(config()).get_current_head()
    assert revision is not None  # noqa: S101 - the repository holds at least one migration
    return revision


def _migrate(connection: sa.Connection, revision: str, *, up: bool) -> int:
    """Run the migrations on this connection; the lock is the session's and ends with it."""
    connection.execute(sa.text("SELECT pg_advisory_lock(:lock)"), {"lock": _LOCK})
    connection.commit()
    before = MigrationContext.configure(connection).get_current_revision()
    connection.rollback()
    settings = config()
    settings.attributes["connection"] = connection
    (command.upgrade if up else command.downgrade)(settings, revision)
    connection.commit()
    after = MigrationContext.configure(connection).get_current_revision()
    connection.rollback()
    return _steps_between(before, after)


def _steps_between(before: str | None, after: str | None) -> int:
    upper, lower = (
        (after, before) if after and (before is None or before < after) else (before, after)
    )
    if upper == lower or upper is None:
        return 0
    script = ScriptDirectory.from_config(config())
    return len(list(script.iterate_revisions(upper, lower or "base")))


def after_step(**_: object) -> None:
    """Called by Alembic when a migration is done and not committed yet."""
    if failpoints.ARMED:
        failpoints.hit_blocking("migrate.mid_step")


def dsn_from_environment() -> str:
    """The database that the environment names; a KeyError says which variable is missing."""
    prefix = "EXECUTION_PLANE_DATABASE__"
    return os.environ.get(f"{prefix}DIRECT_URL") or os.environ[f"{prefix}URL"]


def run_with_connection(dsn: str, work: Callable[[sa.Connection], T]) -> T:
    """Call `work` with a connection of its own to `dsn`."""

    async def run() -> T:
        url = dsn.replace("postgres://", "postgresql://").replace(
            "postgresql://", "postgresql+asyncpg://"
        )
        engine = create_async_engine(url, poolclass=NullPool)
        try:
            async with engine.connect() as connection:
                return await connection.run_sync(work)
        finally:
            await engine.dispose()

    return asyncio.run(run())
