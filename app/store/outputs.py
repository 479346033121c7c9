"""Statements on `runner_output_refs`: a name within an attempt is written once."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from app.domain.records import Output
from app.store.artifacts import POINTED, TOLD, Fenced
from app.store.database import Connection

_COLUMNS = """o.id, o.attempt_id, o.name, o.output_type, o.artifact_ref_id, o.schema_ref,
    o.digest, o.created_at"""


@dataclass(frozen=True, slots=True)
class NewOutput:
    """One output to record."""

    id: UUID
    name: str
    output_type: str
    artifact_id: UUID
    schema_ref: str | None


_RECORD = f"""
-- outputs.record_once
WITH allowed AS (
    SELECT 1 AS one
    WHERE NOT EXISTS (SELECT FROM runner_output_refs o WHERE o.attempt_id = $1 AND o.name = $8)
), {POINTED}, written AS (
    INSERT INTO runner_output_refs AS o (id, attempt_id, name, output_type, artifact_ref_id,
        schema_ref, digest, created_at)
    SELECT $7, $1, $8, $9, p.id, $10, p.digest, clock_fact() FROM pointed p
    RETURNING {_COLUMNS}
), recorded AS (
    SELECT jsonb_build_object('output_id', o.id, 'name', o.name, 'output_type', o.output_type,
        'artifact_id', o.artifact_ref_id, 'schema_ref', o.schema_ref, 'digest', o.digest) AS facts
    FROM written o
), {TOLD}
SELECT {_COLUMNS} FROM written o
"""


async def record_once(conn: Connection, fenced: Fenced, new: NewOutput) -> Output | None:
    """Write an output, and its artifact if that is a ticket yet, under a fence that was passed.

    None: the name is taken, or there is nothing of this attempt to point at.
    """
    row = await conn.fetchrow(
        _RECORD,
        fenced.attempt_id,
        new.artifact_id,
        fenced.lease_id,
        fenced.lease_number,
        fenced.runner_instance_id,
        "output_recorded",
        new.id,
        new.name,
        new.output_type,
        new.schema_ref,
    )
    return None if row is None else Output.model_validate(dict(row))


_FIND_BY_NAME = f"""
-- outputs.find_by_name
SELECT {_COLUMNS} FROM runner_output_refs o WHERE o.attempt_id = $1 AND o.name = $2
"""


async def find_by_name(conn: Connection, attempt_id: UUID, name: str) -> Output | None:
    """The attempt's output of this name, or None."""
    row = await conn.fetchrow(_FIND_BY_NAME, attempt_id, name)
    return None if row is None else Output.model_validate(dict(row))


_EXISTS = """
-- outputs.exists
SELECT EXISTS (SELECT FROM runner_output_refs o WHERE o.attempt_id = $1 AND o.id = $2)
"""


async def exists(conn: Connection, attempt_id: UUID, output_id: UUID) -> bool:
    """Whether the attempt has this output."""
    return bool(await conn.fetchval(_EXISTS, attempt_id, output_id))


_LIST = f"""
-- outputs.list_of_attempt
SELECT {_COLUMNS} FROM runner_output_refs o WHERE o.attempt_id = $1
    AND ($2::text IS NULL OR o.name > $2)
ORDER BY o.name LIMIT $3
"""


async def list_of_attempt(
    conn: Connection, attempt_id: UUID, *, after: str | None, limit: int
) -> list[Output]:
    """At most `limit` outputs of an attempt by name, after this one."""
    rows = await conn.fetch(_LIST, attempt_id, after, limit)
    return [Output.model_validate(dict(row)) for row in rows]
