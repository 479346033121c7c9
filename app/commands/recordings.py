"""Recording outputs and evidence: the fence, the write, and why it was not done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar
from uuid import UUID

from app.commands.leases import refusal
from app.domain.errors import (
    ArtifactGone,
    ArtifactMismatch,
    ArtifactMissing,
    ArtifactNotFound,
    OutputConflict,
    OutputNotFound,
    RequestIdReused,
    ServiceError,
)
from app.domain.lifecycle import ArtifactState, UploadEnd
from app.domain.records import Evidence, Output
from app.store import artifacts, diagnoses, evidence, outputs, uploads
from app.store.artifacts import Fenced
from app.store.database import Connection
from app.store.evidence import NewEvidence
from app.store.leaks import Leak, note
from app.store.leases import Key
from app.store.outputs import NewOutput

R = TypeVar("R", Output, Evidence)


@dataclass(frozen=True, slots=True)
class Recorded(Generic[R]):
    """What stands recorded, and whether it did before."""

    record: R
    replayed: bool


async def record_output(
    conn: Connection, key: Key, lease_time: timedelta, new: NewOutput, leaks: Sequence[Leak] = ()
) -> Recorded[Output] | ServiceError:
    """Write an output once under a live lease. The same again is found, another one refused.

    Its ticket must have been verified before. Locks the attempt.
    """

    async def write(fenced: Fenced) -> Recorded[Output] | ServiceError:
        written = await outputs.record_once(conn, fenced, new)
        if written is not None:
            return Recorded(written, replayed=False)
        return await find_output(conn, fenced.attempt_id, new) or await _why_not(
            conn, fenced.attempt_id, new.artifact_id
        )

    if leaks:
        await note(conn, leaks)
    return await _under_fence(conn, key, lease_time, write)


async def record_evidence(
    conn: Connection,
    key: Key,
    lease_time: timedelta,
    new: NewEvidence,
    leaks: Sequence[Leak] = (),
) -> Recorded[Evidence] | ServiceError:
    """Append an evidence once a request under a live lease. Locks the attempt."""

    async def write(fenced: Fenced) -> Recorded[Evidence] | ServiceError:
        written = await evidence.record_once(conn, fenced, new)
        if written is not None:
            return Recorded(written, replayed=False)
        earlier = await find_evidence(conn, fenced.attempt_id, new)
        if earlier is not None:
            return earlier
        wanted = new.output_id
        if wanted is not None and not await outputs.exists(conn, fenced.attempt_id, wanted):
            return OutputNotFound()
        return await _why_not(conn, fenced.attempt_id, new.artifact_id)

    if leaks:
        await note(conn, leaks)
    return await _under_fence(conn, key, lease_time, write)


async def _under_fence(
    conn: Connection,
    key: Key,
    lease_time: timedelta,
    write: Callable[[Fenced], Awaitable[Recorded[R] | ServiceError]],
) -> Recorded[R] | ServiceError:
    fenced = await artifacts.fence(conn, key, lease_time)
    if fenced is None:
        return refusal(key, (await diagnoses.diagnose(conn, [key.lease_id])).get(key.lease_id))
    return await write(fenced)


async def find_output(
    conn: Connection, attempt_id: UUID, new: NewOutput
) -> Recorded[Output] | OutputConflict | None:
    """The attempt's output of this name, if it says the same; None: there is none.

    The same are bytes and description, not the artifact's id: a further lease that made the same
    output again has uploaded it under a new one.
    """
    earlier = await outputs.find_by_name(conn, attempt_id, new.name)
    if earlier is None:
        return None
    digest = await _digest_of(conn, attempt_id, new.artifact_id)
    same = (earlier.output_type, earlier.schema_ref, earlier.digest) == (
        new.output_type,
        new.schema_ref,
        digest,
    )
    return Recorded(earlier, replayed=True) if same else OutputConflict(output_id=str(earlier.id))


async def find_evidence(
    conn: Connection, attempt_id: UUID, new: NewEvidence
) -> Recorded[Evidence] | RequestIdReused | None:
    """The evidence of this request, if it says the same; None: there is none."""
    earlier = await evidence.find_by_request(conn, attempt_id, new.request_id)
    if earlier is None:
        return None
    same = (
        earlier.evidence_type,
        earlier.status,
        earlier.subject_ref,
        earlier.artifact_ref_id,
        earlier.output_ref_id,
    ) == (new.evidence_type, new.status, new.subject_ref, new.artifact_id, new.output_id)
    return Recorded(earlier, replayed=True) if same else RequestIdReused()


async def _digest_of(conn: Connection, attempt_id: UUID, artifact_id: UUID) -> str | None:
    ticket = await uploads.find(conn, artifact_id, attempt_id)
    if ticket is not None:
        return ticket.digest
    artifact = await artifacts.find(conn, artifact_id)
    return artifact.digest if artifact is not None and artifact.attempt_id == attempt_id else None


async def _why_not(conn: Connection, attempt_id: UUID, artifact_id: UUID | None) -> ServiceError:
    """Why nothing could be made to point at this artifact."""
    if artifact_id is None:
        return ArtifactNotFound()
    artifact = await artifacts.find(conn, artifact_id)
    if artifact is not None and artifact.attempt_id == attempt_id:
        # It was there to be pointed at, had it not begun to go.
        return ArtifactGone() if artifact.state is ArtifactState.REMOVING else ArtifactMissing()
    ticket = await uploads.find(conn, artifact_id, attempt_id)
    if ticket is None:
        return ArtifactNotFound()
    return closed_fact(ticket.closed_reason) or ArtifactMissing(
        "The body that the operation had is gone; ask for the ticket again, and upload."
    )


def closed_fact(reason: UploadEnd | None) -> ServiceError | None:
    """What a closed ticket is answered; None for one that is open, or became an artifact."""
    match reason:
        case UploadEnd.MISMATCH:
            return ArtifactMismatch()
        case UploadEnd.EXPIRED:
            return ArtifactGone("The ticket was closed, since nothing named it in time.")
        case _:
            return None
