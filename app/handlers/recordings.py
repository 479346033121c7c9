"""What `output.record` and `evidence.record` cause, over REST and over push.

First a look, then the store is asked about a ticket's body, then one transaction under the lease's
fence makes the artifact and what points at it. An output that fails costs nothing else.
"""

from __future__ import annotations

from uuid import UUID

from app import failpoints
from app.commands import recordings
from app.commands.leases import key_of
from app.commands.recordings import Recorded
from app.domain.commands import MAX_NAME_LENGTH, RecordEvidence, RecordOutput
from app.domain.errors import ServiceError
from app.domain.ids import new_id
from app.domain.records import Evidence, Output
from app.handlers.counting import counted
from app.handlers.masks import leaks_in, masked_fields
from app.handlers.registry import Context, Registry
from app.handlers.uploads import find_place, live_place
from app.handlers.verification import settle_ticket
from app.services import Services
from app.store import signals
from app.store.evidence import NewEvidence
from app.store.outputs import NewOutput

OUTPUT = "output.record"
EVIDENCE = "evidence.record"

_VERIFY_SECONDS = 5.0
_MAX_SCHEMA_REF = 500
_MAX_SUBJECT = 1000


async def record_output(services: Services, command: RecordOutput) -> Recorded[Output]:
    """Record an output once. The same again, even after the lease, is answered as it was.

    Raises OutputConflict, ArtifactNotFound, ArtifactMissing, ArtifactMismatch, ArtifactVerifying,
    ArtifactGone, or the fact that stands against the lease.
    """
    with counted(services.metrics, OUTPUT):
        command, kinds = await masked_fields(services, command, "output", "name", "schema_ref")
        new = NewOutput(
            new_id(),
            command.name[:MAX_NAME_LENGTH],
            command.output_type,
            command.artifact_id,
            command.schema_ref and command.schema_ref[:_MAX_SCHEMA_REF],
        )
        place = await find_place(services, command)
        earlier = await services.database.run(
            lambda conn: recordings.find_output(conn, place.attempt_id, new)
        )
        if earlier is not None:
            return _answered(services, place.attempt_id, earlier)
        await live_place(services, command)
        await settle_ticket(services, place.attempt_id, new.artifact_id, _VERIFY_SECONDS)
        leaks = leaks_in(command, kinds, "output")
        outcome = await services.database.run(
            lambda conn: recordings.record_output(
                conn, key_of(command), services.terms.lease_time, new, leaks
            )
        )
        if failpoints.ARMED:
            await failpoints.hit("output.after_commit")
        return _answered(services, place.attempt_id, outcome)


async def record_evidence(services: Services, command: RecordEvidence) -> Recorded[Evidence]:
    """Append an evidence once a request. Raises RequestIdReused, OutputNotFound, or as above."""
    with counted(services.metrics, EVIDENCE):
        command, kinds = await masked_fields(services, command, "evidence", "subject_ref")
        new = NewEvidence(
            new_id(),
            command.request_id,
            command.evidence_type,
            command.status,
            command.subject_ref[:_MAX_SUBJECT],
            command.artifact_id,
            command.output_id,
        )
        place = await find_place(services, command)
        earlier = await services.database.run(
            lambda conn: recordings.find_evidence(conn, place.attempt_id, new)
        )
        if earlier is not None:
            return _answered(services, place.attempt_id, earlier)
        await live_place(services, command)
        if new.artifact_id is not None:
            await settle_ticket(services, place.attempt_id, new.artifact_id, _VERIFY_SECONDS)
        leaks = leaks_in(command, kinds, "evidence")
        outcome = await services.database.run(
            lambda conn: recordings.record_evidence(
                conn, key_of(command), services.terms.lease_time, new, leaks
            )
        )
        if failpoints.ARMED:
            await failpoints.hit("evidence.after_commit")
        return _answered(services, place.attempt_id, outcome)


def _answered(
    services: Services, attempt_id: UUID, outcome: Recorded[recordings.R] | ServiceError
) -> Recorded[recordings.R]:
    if isinstance(outcome, ServiceError):
        raise outcome
    if not outcome.replayed:
        services.signals.wake(signals.attempt(attempt_id))
        services.signals.wake(signals.FEED)
    return outcome


def register(registry: Registry) -> None:
    """Register the handlers of this module."""

    @registry.handler(OUTPUT, RecordOutput, idempotent_by="name")
    async def output_recorded(context: Context, command: RecordOutput) -> None:
        await record_output(context.services, command)

    @registry.handler(EVIDENCE, RecordEvidence, idempotent_by="request_id")
    async def evidence_recorded(context: Context, command: RecordEvidence) -> None:
        await record_evidence(context.services, command)
