"""The server's lock table must have room for the locks of pushed messages."""

import pytest

from app.commands.lock_room import judge, report_on
from app.store.gathering import MOST


async def test_the_servers_own_word_is_what_counts(make_settings, sql):
    settings = make_settings()
    connections = int(await sql.fetchval("SHOW max_connections"))
    prepared = int(await sql.fetchval("SHOW max_prepared_transactions"))
    room = (connections + prepared) * int(await sql.fetchval("SHOW max_locks_per_transaction"))

    report = await report_on(settings, 1)

    assert f"room for {room} locks" in report.lines[0]
    assert report.usable is (settings.database.pool_size * MOST <= room // 2)


@pytest.mark.parametrize(
    ("instances", "pool", "keys", "usable"),
    [(6, 8, 1, True), (7, 8, 1, False), (3, 8, 2, True), (4, 8, 2, False), (1, 51, 1, False)],
)
def test_half_of_the_lock_table_is_the_limit(instances, pool, keys, usable, make_settings):
    """As many as PostgreSQL has by default: 64 locks for each of 100 connections."""
    secrets = {f"k{number}": f"the secret {number}, long enough to be one" for number in (1, 2)}
    settings = make_settings(
        DATABASE__POOL_SIZE=pool,
        KEYS__SECRETS={name: secrets[name] for name in list(secrets)[:keys]},
    )

    report = judge(settings, instances, 6400)

    assert report.usable is usable
    assert len(report.lines) == (2 if usable else 3)
