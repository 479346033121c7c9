"""Creation of attempts: idempotent, set-based, one outcome per request by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from app import failpoints
from app.domain import jsontext
from app.domain.commands import CreateAttempt
from app.domain.errors import IdempotencyKeyReused, ServiceError, TooManyPlacements
from app.domain.ids import new_id
from app.domain.keys import KeyRing
from app.domain.lifecycle import kind_of
from app.domain.placement import Demands
from app.domain.records import Attempt
from app.store import attempts
from app.store.database import Connection

_PURPOSE = "attempt.create"


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A validated command together with the JSON as it was sent, which its digest is made of."""

    command: CreateAttempt
    as_sent: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Created:
    """The attempt, and whether it had been created before by the same request."""

    attempt: Attempt
    replayed: bool
    placement_class_id: UUID


async def create(
    conn: Connection, keys: KeyRing, requests: Sequence[CreateRequest], max_classes: int
) -> list[Created | ServiceError]:
    """Create each attempt once per idempotency key; at most one request a key in a batch.

    Outcomes by position: Created, or IdempotencyKeyReused. Raises TooManyPlacements (and keeps
    nothing) when a new placement class would be one too many for its kind.
    """
    rows = [_row(keys, request) for request in requests]
    created, classes_added = await attempts.create(conn, rows)
    if classes_added:
        await _check_class_limit(conn, {row.runner_kind for row in rows}, max_classes)
    if failpoints.ARMED:
        await failpoints.hit("create.after_insert")
    missed = [row.idempotency_key for row in rows if row.idempotency_key not in created]
    existing = await attempts.find_by_keys(conn, missed) if missed else {}
    outcomes: list[Created | ServiceError] = []
    for row, request in zip(rows, requests, strict=True):
        if row.idempotency_key in created:
            outcomes.append(
                Created(
                    created[row.idempotency_key],
                    replayed=False,
                    placement_class_id=row.placement_class_id,
                )
            )
        else:
            attempt, digest = existing[row.idempotency_key]
            outcomes.append(_replayed(keys, request, attempt, digest, row.placement_class_id))
    return outcomes


def _replayed(
    keys: KeyRing, request: CreateRequest, attempt: Attempt, digest: str, class_id: UUID
) -> Created | ServiceError:
    if keys.matches(digest, _PURPOSE, request.as_sent):
        return Created(attempt, replayed=True, placement_class_id=class_id)
    return IdempotencyKeyReused(attempt_id=str(attempt.id))


async def _check_class_limit(conn: Connection, kinds: set[str], max_classes: int) -> None:
    for kind in sorted(kinds):
        if await attempts.count_placement_classes(conn, kind) > max_classes:
            raise TooManyPlacements(runner_kind=kind, limit=max_classes)


def _row(keys: KeyRing, request: CreateRequest) -> attempts.NewAttempt:
    command = request.command
    kind = kind_of(command.job_type)
    placement = command.placement
    demands = Demands(kind, command.job_type, placement.zone, placement.labels)
    return attempts.NewAttempt(
        id=new_id(),
        event_id=new_id(),
        operation_id=command.operation_id,
        plan_id=command.plan_id,
        plan_node_id=command.plan_node_id,
        node_run_id=command.node_run_id,
        requested_by_service=command.requested_by_service,
        idempotency_key=command.idempotency_key,
        request_digest=keys.digest(_PURPOSE, request.as_sent),
        job_type=command.job_type,
        job_spec_ref=jsontext.dumps(command.job_spec_ref),
        runner_kind=kind.value,
        priority=command.priority,
        timeout_seconds=command.timeout_seconds,
        queue_timeout_seconds=command.queue_timeout_seconds,
        placement=placement.model_dump_json(),
        placement_class_id=demands.class_id,
        zone=placement.zone,
        labels=jsontext.dumps(placement.labels),
        concurrency_key=command.concurrency_key,
    )
