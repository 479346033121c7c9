"""What is stored, as callers see it: one model each, used by the store and in every answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Json

from app.domain.lifecycle import (
    ArtifactState,
    EventType,
    EvidenceStatus,
    EvidenceType,
    FailureCategory,
    LeaseStatus,
    LogStream,
    OutputType,
    Phase,
    RetentionClass,
    RunnerKind,
    RunnerStatus,
    Status,
)


class Record(BaseModel):
    """Something read from the database."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Attempt(Record):
    """One technical execution: immutable but for its status, which moves forward only."""

    id: UUID
    """Made by this service; never changes."""
    operation_id: UUID
    """The operation that this execution belongs to."""
    plan_id: UUID
    """The plan of that operation."""
    plan_node_id: UUID
    """The node of the plan."""
    node_run_id: UUID
    """The run of that node."""
    requested_by_service: str
    """Who asked."""
    idempotency_key: str
    """The key under which it was created."""
    job_type: str
    """What is to be done."""
    job_spec_ref: Json[dict[str, Any]]
    """The normalised job specification, without secret values."""
    status: Status
    """Where it is in its lifecycle."""
    failure_category: FailureCategory | None
    """Why it did not succeed; set with every end but `succeeded`."""
    failure_message: str | None
    """What happened, for people."""
    result: Json[dict[str, Any]] | None
    """The small result that its runner reported."""
    runner_kind: RunnerKind
    """What kind of runner can take it."""
    runner_instance_id: str | None
    """The runner that holds or last held a lease on it."""
    priority: int
    """The smaller number goes first."""
    timeout_seconds: int
    """Longest run, from `started_at`."""
    queue_timeout_seconds: int | None
    """Longest wait in the queue."""
    placement: Json[dict[str, Any]]
    """What the runner must have."""
    concurrency_key: str | None
    """What only one attempt may touch at a time."""
    created_at: datetime
    """When it was created."""
    leased_at: datetime | None
    """When a runner first took it."""
    started_at: datetime | None
    """When its work first began."""
    finished_at: datetime | None
    """When it ended."""
    cancel_requested_at: datetime | None
    """When its cancellation was first asked for."""
    cancel_reason: str | None
    """Why it is to be cancelled."""
    stop_confirmed: bool | None
    """After the end: whether every runner that had started it has said that it stopped."""


class Lease(Record):
    """The right of one runner session to work on one attempt."""

    id: UUID
    """Made by this service."""
    attempt_id: UUID
    """The attempt."""
    lease_number: int
    """1, 2, 3 … within the attempt."""
    runner_instance_id: str
    """The runner."""
    session_id: UUID
    """The runner's session."""
    status: LeaseStatus
    """Active until its one end."""
    phase: Phase | None
    """What the runner last said it was doing."""
    progress_percent: int | None
    """How far it last said it was."""
    created_at: datetime
    """When it was claimed."""
    started_at: datetime | None
    """When the runner began to work under it."""
    expires_at: datetime
    """When it ends unless it is renewed."""
    released_at: datetime | None
    """When it ended, however it ended."""


class Event(Record):
    """One line of an attempt's timeline."""

    id: UUID
    """Stable: the same in every reading and delivery."""
    attempt_id: UUID
    """The attempt."""
    event_number: int
    """1, 2, 3 … within the attempt."""
    event_type: EventType
    """What happened."""
    payload: Json[dict[str, Any]]
    """The facts of it."""
    created_at: datetime
    """When it happened; never earlier than the event before it."""


class HeartbeatRecord(Record):
    """One sign of life."""

    id: UUID
    """Made by this service."""
    attempt_id: UUID
    """The attempt."""
    runner_instance_id: str
    """The runner."""
    phase: Phase | None
    """What it was doing."""
    progress_percent: int | None
    """How far it was."""
    message: str | None
    """For people."""
    created_at: datetime
    """When it arrived."""


class LogRef(Record):
    """One stored chunk of a log stream."""

    id: UUID
    """Made by this service."""
    attempt_id: UUID
    """The attempt."""
    lease_number: int
    """The lease that sent it."""
    stream: LogStream
    """The stream."""
    stream_offset: int
    """Where it begins, in raw bytes of this stream of this lease."""
    raw_size: int
    """Its length in raw bytes."""
    byte_size: int
    """Its length as stored."""
    line_count: int
    """Line feeds in it."""
    masked: bool
    """Whether it went through the masking engine before it was stored."""
    artifact_ref_id: UUID
    """The object that holds it."""
    created_at: datetime
    """When it was stored."""


class Artifact(Record):
    """A body in the object store that something of an attempt points at."""

    id: UUID
    """Made by this service with the ticket."""
    attempt_id: UUID
    """The attempt."""
    operation_id: UUID
    """The operation of that attempt."""
    name: str | None
    """What its runner called it."""
    content_type: str
    """What it is, as a media type."""
    digest: str
    """`sha256:` and the SHA-256 of its bytes."""
    byte_size: int
    """Its size."""
    retention_class: RetentionClass
    """How long it is kept."""
    state: ArtifactState
    """`ready`, or `removing`: its body cannot be read any more."""
    storage: str
    """The kind of store."""
    bucket: str
    """The bucket."""
    key: str
    """The object in it. Several artifacts of one operation may share one."""
    created_at: datetime
    """When it was recorded."""
    expires_at: datetime | None
    """When it may be removed; unset: by its class."""
    held_at: datetime | None
    """Since when it may not be removed."""


class Output(Record):
    """What an attempt produced, under a name."""

    id: UUID
    """Made by this service."""
    attempt_id: UUID
    """The attempt."""
    name: str
    """Unique within the attempt."""
    output_type: OutputType
    """Its form."""
    artifact_ref_id: UUID
    """The artifact that holds it."""
    schema_ref: str | None
    """What its content keeps to."""
    digest: str
    """The artifact's digest."""
    created_at: datetime
    """When it was recorded."""


class Evidence(Record):
    """What shows that a condition holds or does not."""

    id: UUID
    """Made by this service."""
    attempt_id: UUID
    """The attempt."""
    output_ref_id: UUID | None
    """The output that it is about."""
    evidence_type: EvidenceType
    """Its form."""
    status: EvidenceStatus
    """What it shows."""
    subject_ref: str
    """What it is about."""
    artifact_ref_id: UUID | None
    """The artifact that shows it."""
    recorded_at: datetime
    """When it was recorded."""


class Runner(Record):
    """A registered runner instance."""

    id: str
    """Chosen by the runner."""
    runner_kind: RunnerKind
    """What it is made for."""
    version: str
    """Its version."""
    capabilities: list[str]
    """Job types it can do."""
    zone: str | None
    """Where it runs."""
    labels: Json[dict[str, str]]
    """What placements may ask for."""
    session_id: UUID
    """The process that speaks for it now."""
    registered_at: datetime
    """When this session began."""
    last_seen_at: datetime
    """When it was last heard of."""
    status: RunnerStatus
    """As shown: offline, draining, unhealthy, busy or ready."""
    capacity_total: int
    """Leases it can hold at once."""
    capacity_used: int
    """Leases it holds."""
    last_error: str | None
    """What it reported to have gone wrong last."""
