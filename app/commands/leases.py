"""Commands of a lease's holder: start, heartbeat and complete, each fenced by the lease's row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from app import failpoints
from app.auth.lease_tokens import hash_of
from app.commands.ends import take_back
from app.domain import jsontext
from app.domain.commands import CompleteLease, Heartbeat, ReleaseLease, StartLease, UnderLease
from app.domain.errors import (
    AlreadyStarted,
    AttemptEnded,
    Cancelled,
    LeaseExpired,
    LeaseNotFound,
    LeaseReleased,
    LeaseRevoked,
    LeaseTokenInvalid,
    OutcomeUnknown,
    ServiceError,
    SessionReplaced,
)
from app.domain.ids import new_id
from app.domain.keys import KeyRing
from app.domain.lifecycle import FailureCategory, LeaseStatus, Outcome, Status, is_terminal
from app.domain.records import Attempt
from app.settings import LeaseSettings
from app.store import diagnoses, leaks, leases
from app.store.batches import rounds
from app.store.database import Connection
from app.store.diagnoses import Diagnosis
from app.store.ends import End, Rules
from app.store.late import record_once
from app.store.leaks import Leak
from app.store.leases import Beaten, Completion, Key, Started

_COMPLETE_PURPOSE = "lease.complete"


@dataclass(frozen=True, slots=True)
class Terms:
    """Durations that every command under a lease works with."""

    lease_time: timedelta
    cancel_grace: timedelta

    @classmethod
    def of(cls, settings: LeaseSettings) -> Terms:
        """The terms that the settings give."""
        return cls(
            timedelta(seconds=settings.lease_seconds),
            timedelta(seconds=settings.cancel_grace_seconds),
        )


def key_of(command: UnderLease) -> Key:
    """The lease and the hash of the token that this command shows."""
    return Key(command.lease_id, hash_of(command.lease_token.get_secret_value()))


async def start(
    conn: Connection, terms: Terms, commands: Sequence[StartLease]
) -> list[Started | ServiceError]:
    """Begin work. A result that is not an error always means: begin.

    With a cancel pending the attempt runs and is cancelled in one transaction: two legal moves,
    each with its event, and the answer is Cancelled. A repeat of a start is answered alike.
    """
    keys = [key_of(command) for command in commands]
    started = await leases.start(conn, keys, terms.lease_time, terms.cancel_grace)
    stopped = [
        key
        for key in keys
        if key.lease_id in started and started[key.lease_id].attempt.cancel_requested_at is not None
    ]
    never_began = [key for key in stopped if started[key.lease_id].first]
    ended: Mapping[UUID, Attempt] = {}
    if never_began:
        ended = await leases.complete(conn, [_cancelled(key) for key in never_began])
    missed = await _diagnose(conn, keys, started)
    outcomes: list[Started | ServiceError] = []
    for key in keys:
        if key in stopped:
            attempt = ended.get(key.lease_id) or started[key.lease_id].attempt
            outcomes.append(Cancelled(**_told(attempt)))
        elif key.lease_id in started:
            outcomes.append(started[key.lease_id])
        else:
            outcomes.append(refusal(key, missed.get(key.lease_id)))
    return outcomes


def _cancelled(key: Key) -> Completion:
    return Completion(
        key,
        Outcome.CANCELLED.value,
        FailureCategory.CANCELLED.value,
        "Cancelled before its work began.",
        None,
        "cancelled-at-start",
    )


@dataclass(frozen=True, slots=True)
class BeatRequest:
    """A heartbeat whose texts were masked, with what was masked in it."""

    command: Heartbeat
    leaks: tuple[Leak, ...] = ()
    published_at: datetime | None = None


async def heartbeat(
    conn: Connection, terms: Terms, requests: Sequence[BeatRequest]
) -> list[Beaten | ServiceError]:
    """Renew leases; one statement where no phase changes. Older beats renew and change no more."""
    await _note_leaks(conn, requests)
    beats = [_beat(request) for request in requests]
    beaten = await leases.heartbeat(conn, beats, terms.lease_time, with_phase=False)
    left = [beat for beat in beats if beat.key.lease_id not in beaten]
    if left:
        beaten |= await leases.heartbeat(conn, left, terms.lease_time, with_phase=True)
    missed = await _diagnose(conn, [beat.key for beat in beats], beaten)
    return [
        beaten.get(beat.key.lease_id)
        or refusal(beat.key, missed.get(beat.key.lease_id), session_id=beat.session_id)
        for beat in beats
    ]


def _beat(request: BeatRequest) -> leases.Beat:
    command = request.command
    return leases.Beat(
        key_of(command),
        new_id(),
        command.session_id,
        command.sequence,
        command.phase,
        command.progress_percent,
        command.message,
        request.published_at,
    )


async def _note_leaks(
    conn: Connection, requests: Sequence[BeatRequest] | Sequence[CompleteRequest]
) -> None:
    """Events of what was masked come first: they lock attempts, which comes before leases."""
    noted = [leak for request in requests for leak in request.leaks]
    if noted:
        await leaks.note(conn, noted)


@dataclass(frozen=True, slots=True)
class CompleteRequest:
    """A completion whose texts were masked, together with the JSON as it was sent."""

    command: CompleteLease
    as_sent: Mapping[str, Any]
    leaks: tuple[Leak, ...] = ()


@dataclass(frozen=True, slots=True)
class Completed:
    """The ended attempt, and whether this completion had been accepted before."""

    attempt: Attempt
    replayed: bool


@dataclass(frozen=True, slots=True)
class Word:
    """What became of a completion, and the concurrency key that it set free."""

    outcome: Completed | ServiceError
    freed_key: str | None


async def complete(
    conn: Connection, keys: KeyRing, terms: Terms, requests: Sequence[CompleteRequest]
) -> list[Word]:
    """End attempts by their runners' word; the first word under a lease is final.

    A completion before the start (whose answer was lost) starts and ends the attempt in one
    transaction. The same completion again gets the same result, a different one AttemptEnded. The
    first one after the lease's end is refused and kept as a late word. Outcomes by position.
    """
    await _note_leaks(conn, requests)
    rows = [_completion(keys, request) for request in requests]
    if failpoints.ARMED:
        await failpoints.hit("complete.before_event")
    done = await leases.complete(conn, rows)
    missed = await _diagnose(conn, [row.key for row in rows], done)
    held = [row for row in rows if _is_held(row, missed.get(row.key.lease_id))]
    if held:
        # Not started yet, or only just: a start may have been committed between two statements.
        waiting = [row.key for row in held if _is_leased(missed[row.key.lease_id])]
        if waiting:
            await leases.start(conn, waiting, terms.lease_time, terms.cancel_grace)
        done |= await leases.complete(conn, held)
        missed = await _diagnose(conn, [row.key for row in rows], done)
    outcomes: list[Completed | ServiceError] = []
    for row, request in zip(rows, requests, strict=True):
        if row.key.lease_id in done:
            outcomes.append(Completed(done[row.key.lease_id], replayed=False))
        else:
            outcomes.append(_repeated(keys, request, row.key, missed.get(row.key.lease_id)))
    late = [row for row in rows if _is_late(row, missed.get(row.key.lease_id))]
    freed_late: dict[UUID, str | None] = {}
    for positions in rounds(late, lambda row: missed[row.key.lease_id].attempt.id):
        words = await record_once(conn, [late[position] for position in positions])
        freed_late |= {word.lease_id: word.freed_key for word in words}
    return [
        Word(outcome, _freed_key(outcome) or freed_late.get(row.key.lease_id))
        for row, outcome in zip(rows, outcomes, strict=True)
    ]


def _freed_key(outcome: Completed | ServiceError) -> str | None:
    """The key that this end set free, if it did."""
    if isinstance(outcome, ServiceError) or outcome.replayed:
        return None
    return outcome.attempt.concurrency_key


def _is_late(row: Completion, found: Diagnosis | None) -> bool:
    return (
        found is not None
        and found.token_hash == row.key.token_hash
        and found.status is not LeaseStatus.ACTIVE
        and found.completion_digest is None
    )


def _is_held(row: Completion, found: Diagnosis | None) -> bool:
    return (
        found is not None
        and found.token_hash == row.key.token_hash
        and found.status is LeaseStatus.ACTIVE
    )


def _is_leased(found: Diagnosis) -> bool:
    return found.attempt.status is Status.LEASED


def _completion(keys: KeyRing, request: CompleteRequest) -> Completion:
    command = request.command
    return Completion(
        key_of(command),
        command.outcome.value,
        None if command.category is None else command.category.value,
        command.failure_message,
        None if command.result is None else jsontext.dumps(command.result),
        keys.digest(_COMPLETE_PURPOSE, request.as_sent),
    )


def _repeated(
    keys: KeyRing, request: CompleteRequest, key: Key, found: Diagnosis | None
) -> Completed | ServiceError:
    if (
        found is not None
        and found.token_hash == key.token_hash
        and found.completion_digest is not None
        and found.completion_digest.count(":") == 2  # noqa: PLR2004 - version:key:hex
        and keys.matches(found.completion_digest, _COMPLETE_PURPOSE, request.as_sent)
    ):
        return Completed(found.attempt, replayed=True)
    return refusal(key, found)


async def release(
    conn: Connection, rules: Rules, command: ReleaseLease, noted: Sequence[Leak] = ()
) -> tuple[Attempt | ServiceError, list[End]]:
    """Give a lease back: before its start, or where its job may be begun again, at once.

    A repeat is answered alike. AlreadyStarted where only a completion can end it.
    """
    key = key_of(command)
    if noted:
        await leaks.note(conn, noted)
    found = (await diagnoses.diagnose(conn, [key.lease_id])).get(key.lease_id)
    if found is None or found.token_hash != key.token_hash:
        return refusal(key, found), []
    ended = await take_back(conn, rules, [key.lease_id], command.reason or "released")
    found = (await diagnoses.diagnose(conn, [key.lease_id])).get(key.lease_id)
    if found is None or found.completion_digest is not None:
        return refusal(key, found), ended
    if found.status is LeaseStatus.RELEASED:
        return found.attempt, ended
    if found.status is LeaseStatus.ACTIVE:
        return AlreadyStarted(attempt=_told(found.attempt)["attempt"]), ended
    return refusal(key, found), ended


async def _diagnose(
    conn: Connection, keys: Sequence[Key], done: Mapping[UUID, object]
) -> dict[UUID, Diagnosis]:
    """Why the rest was not done; a new statement, whose snapshot sees who was quicker."""
    missed = [key.lease_id for key in keys if key.lease_id not in done]
    return await diagnoses.diagnose(conn, missed) if missed else {}


def refusal(  # noqa: PLR0911 - one line a fact
    key: Key, found: Diagnosis | None, *, session_id: UUID | None = None
) -> ServiceError:
    """The one fact that kept a command under a lease from being carried out."""
    if found is None:
        return LeaseNotFound()
    if found.token_hash != key.token_hash:
        return LeaseTokenInvalid()
    told = _told(found.attempt)
    if session_id is not None and session_id != found.session_id:
        return SessionReplaced("This lease belongs to another session of the runner.", **told)
    if found.attempt.status is Status.CANCELLED:
        return Cancelled(**told)
    if found.completion_digest is not None:
        return AttemptEnded(**told)
    match found.status:
        case LeaseStatus.EXPIRED:
            return LeaseExpired(**told)
        case LeaseStatus.RELEASED:
            return LeaseReleased(**told)
        case LeaseStatus.REVOKED:
            return SessionReplaced(**told) if found.session_replaced else LeaseRevoked(**told)
        case LeaseStatus.ACTIVE:
            # Active, token right, and yet not done: it changed between two of our statements.
            return AttemptEnded(**told) if is_terminal(found.attempt.status) else OutcomeUnknown()


def _told(attempt: Attempt) -> dict[str, Any]:
    """What every refusal says of the attempt, and that the runner must stop."""
    category = attempt.failure_category
    return {
        "action": "stop",
        "attempt": {
            "id": str(attempt.id),
            "status": attempt.status.value,
            "failure_category": None if category is None else category.value,
        },
    }
