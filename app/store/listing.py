"""The filtered list of attempts: the one statement that is built at run time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from app.domain.records import Attempt
from app.store.attempts import COLUMNS
from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Filter:
    """What a list of attempts is narrowed to; unset fields do not narrow."""

    status: str | None = None
    job_type: str | None = None
    runner_kind: str | None = None
    operation_id: UUID | None = None
    plan_id: UUID | None = None
    plan_node_id: UUID | None = None
    runner_instance_id: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


async def list_attempts(
    conn: Connection,
    narrowed: Filter,
    *,
    before: tuple[datetime, UUID] | None,
    limit: int,
    timeout_milliseconds: int,
) -> list[Attempt]:
    """At most `limit` attempts, newest first, before the given place.

    Runs under a statement timeout of its own: a filter that reads too much raises
    asyncpg.QueryCanceledError, which the edge turns into `filter-too-wide`.
    """
    conditions, values = _conditions(narrowed, before)
    values.append(limit)
    await conn.execute(f"SET LOCAL statement_timeout = {int(timeout_milliseconds)}")
    where = " AND ".join(conditions) or "true"
    rows = await conn.fetch(
        f"-- listing.list_attempts\nSELECT {COLUMNS} FROM execution_attempts a WHERE {where} "
        f"ORDER BY a.created_at DESC, a.id DESC LIMIT ${len(values)}",
        *values,
    )
    return [Attempt.model_validate(dict(row)) for row in rows]


def _conditions(
    narrowed: Filter, before: tuple[datetime, UUID] | None
) -> tuple[list[str], list[Any]]:
    """One condition a field that is set; names are this module's own, values are parameters."""
    equal = (
        "status",
        "job_type",
        "runner_kind",
        "operation_id",
        "plan_id",
        "plan_node_id",
        "runner_instance_id",
    )
    values: list[Any] = []
    conditions: list[str] = []
    for name in equal:
        value = getattr(narrowed, name)
        if value is not None:
            values.append(value)
            conditions.append(f"a.{name} = ${len(values)}")
    for value, operator in ((narrowed.created_after, ">="), (narrowed.created_before, "<")):
        if value is not None:
            values.append(value)
            conditions.append(f"a.created_at {operator} ${len(values)}")
    if before is not None:
        values.extend(before)
        conditions.append(f"(a.created_at, a.id) < (${len(values) - 1}, ${len(values)})")
    return conditions, values
