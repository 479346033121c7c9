"""No row, sequence or notification that every transaction must take: two lives never meet.

One life is left uncommitted with all its locks, and another runs beside it from creation to
completion, by runners of one kind and attempts of one class. It may wait for nothing.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import asyncpg
import pytest

from app.store.database import Connection
from bench.commands import Commands, commands_over
from tests.plans.test_pinned_plans import HOT

T = TypeVar("T")
SHARED = re.compile(r"\b(nextval|NOTIFY|pg_notify|LOCK TABLE|pg_advisory\w*)\b", re.IGNORECASE)
BY_KEY = {"holds.lock_keys"}
"""Waits for those who move up the same concurrency key, and nobody else."""
MODES = {"AccessShareLock", "RowShareLock", "RowExclusiveLock"}
"""Of tables: they conflict with none of each other."""


class OneTransaction:
    """Carries commands out on one connection and commits none of them."""

    def __init__(self, sql: asyncpg.Connection) -> None:
        self._sql = sql

    async def run(
        self,
        command: Callable[[Connection], Awaitable[T]],
        *,
        pinned: bool = False,  # noqa: ARG002
    ) -> T:
        return await command(self._sql)


@pytest.fixture
async def open_life(queue, fresh_database) -> AsyncIterator[asyncpg.Connection]:
    """A connection in whose transaction one attempt has lived and all else is as it was."""
    async with commands_over(fresh_database) as before:
        await before.live(1)  # the class, which the first of its kind makes
    sql = await asyncpg.connect(fresh_database)
    others = await Commands(OneTransaction(sql)).register()
    transaction = sql.transaction()
    await transaction.start()
    await others.live(3)
    yield sql
    await transaction.rollback()
    await sql.close()


async def test_a_life_waits_for_no_other(open_life, fresh_database):
    sql = await asyncpg.connect(fresh_database, server_settings={"lock_timeout": "1000"})
    commands = await Commands(OneTransaction(sql)).register()

    async with sql.transaction():
        await commands.live(3)

    await sql.close()


async def test_a_life_locks_tables_for_rows_only(open_life, queue):
    rows = await queue.connection.fetch(
        "SELECT locktype, mode FROM pg_locks WHERE pid = $1 AND granted",
        open_life.get_server_pid(),
    )

    assert {row["locktype"] for row in rows} <= {"relation", "virtualxid", "transactionid"}
    assert {row["mode"] for row in rows if row["locktype"] == "relation"} <= MODES


def test_no_hot_statement_names_what_all_would_share():
    named = {name for name, text in HOT.items() if SHARED.search(text)}

    assert named == BY_KEY


async def test_the_schema_has_no_sequence(sql):
    assert await sql.fetch("SELECT sequencename FROM pg_sequences") == []
