"""The one plan of each hot statement, made for no parameters, reads by keys and no whole index.

It must do so even where statistics say that a partial index is empty, as they do after a quiet
night: the plan is kept while thousands of entries come, and dead ones stay as long as any old
snapshot is open.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from app.store import (
    artifacts,
    attempts,
    claims,
    diagnoses,
    ends,
    holds,
    late,
    leaks,
    leases,
    logs,
)

HOT = {
    text.split()[1]: text
    for module in (artifacts, attempts, claims, diagnoses, ends, holds, late, leaks, leases, logs)
    for name, text in vars(module).items()
    if name.startswith("_") and isinstance(text, str) and text.lstrip().startswith("-- ")
}
SELDOM = {
    "attempts.find_by_tail",
    "holds.list_holds",
    "holds.move_up",
    "holds.release_due",
    "logs.truncate",
}
"""For operators, of what few there are, or planned for its values (not pinned)."""
GROWING = {"execution_attempts", "runner_leases"}
BY_STATUS = "execution_attempts_status_priority_created_at_idx"
PINNED = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


async def kept_plan(sql: asyncpg.Connection, statement: str) -> dict[str, Any]:
    """The plan that a connection keeps for this statement, whatever its parameters."""
    await sql.execute(PINNED)
    await sql.execute(f"PREPARE kept AS {statement}")
    many = max((int(number) for number in re.findall(r"\$(\d+)", statement)), default=0)
    values = f"({', '.join(['NULL'] * many)})" if many else ""
    text = await sql.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE kept{values}")
    await sql.execute("DEALLOCATE kept")
    return json.loads(text)[0]["Plan"]


def whole_scans(plan: dict[str, Any]) -> list[str]:
    """What a plan would read from beginning to end of the tables that grow."""
    return [
        f"{node['Node Type']} of {node['Relation Name']} by {node.get('Index Name')}"
        for node in nodes(plan)
        if node.get("Relation Name") in GROWING
        and node["Node Type"] in {"Seq Scan", "Index Scan", "Index Only Scan"}
        and ("Index Cond" not in node or node["Index Name"] == BY_STATUS)
    ]


@pytest.mark.parametrize("name", sorted(HOT.keys() - SELDOM))
async def test_plan_after_a_quiet_night_reads_no_index_as_a_whole(long_history, name):
    plan = await kept_plan(long_history.connection, HOT[name])

    assert whole_scans(plan) == []


async def test_that_a_partial_index_would_be_read_as_a_whole_is_seen(long_history):
    beat = leases._BEAT.replace("(SELECT 'active')", "'active'")

    found = whole_scans(await kept_plan(long_history.connection, beat))

    assert len(found) == 1


def test_the_hot_statements_are_among_them():
    of_a_life = {"attempts.create", "claims.look", "claims.lease", "leases.start"}
    assert of_a_life | {"leases.heartbeat", "leases.complete", "ends.decide"} <= HOT.keys()
