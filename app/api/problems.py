"""How every error is told: one table, one form (RFC 9457), nothing of the input in it.

The table also says what a push delivery is answered when the same error meets it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson
from starlette.responses import Response

from app.domain import errors as e
from app.domain.errors import ServiceError

TYPE_BASE = "/docs/errors#"
MEDIA_TYPE = "application/problem+json"


class Push(Enum):
    """What an error means for a pushed message."""

    POISON = "can never succeed: recorded as a dead letter and acknowledged"
    OVERTAKEN = "overtaken by what has happened since: acknowledged"
    LATER = "may succeed later for a reason of its own: counted and not acknowledged"
    OURS = "our fault: not acknowledged and never counted"
    RUNNING = "the same message is being worked on: not acknowledged and not counted"
    REFUSED = "refused before anything was read: not acknowledged"


@dataclass(frozen=True, slots=True)
class Answer:
    """Status over HTTP, and meaning over push."""

    status: int
    push: Push
    retry_after: int | None = None


ANSWERS: Mapping[type[ServiceError], Answer] = {
    e.SettingsInvalid: Answer(500, Push.OURS),
    e.RequestInvalid: Answer(422, Push.POISON),
    e.SecretInRequest: Answer(422, Push.POISON),
    e.BodyNotJson: Answer(400, Push.POISON),
    e.BodyTooLarge: Answer(413, Push.POISON),
    e.ContentEncodingUnsupported: Answer(415, Push.POISON),
    e.BatchTooLarge: Answer(413, Push.POISON),
    e.PageTokenInvalid: Answer(400, Push.POISON),
    e.PageTokenMismatch: Answer(400, Push.POISON),
    e.FilterTooWide: Answer(422, Push.POISON),
    e.RangeNotSatisfiable: Answer(416, Push.POISON),
    e.Unauthenticated: Answer(401, Push.REFUSED),
    e.Forbidden: Answer(403, Push.REFUSED),
    e.IdentityUnavailable: Answer(503, Push.OURS, retry_after=5),
    e.AttemptNotFound: Answer(404, Push.LATER),
    e.IdempotencyKeyReused: Answer(409, Push.POISON),
    e.TooManyPlacements: Answer(422, Push.POISON),
    e.AlreadyTerminal: Answer(409, Push.OVERTAKEN),
    e.AttemptEnded: Answer(409, Push.OVERTAKEN),
    e.Cancelled: Answer(409, Push.OVERTAKEN),
    e.LeaseNotFound: Answer(404, Push.POISON),
    e.LeaseTokenInvalid: Answer(403, Push.POISON),
    e.LeaseExpired: Answer(409, Push.OVERTAKEN),
    e.LeaseRevoked: Answer(409, Push.OVERTAKEN),
    e.LeaseReleased: Answer(409, Push.OVERTAKEN),
    e.AlreadyStarted: Answer(409, Push.POISON),
    e.TokenKeyRetired: Answer(409, Push.POISON),
    e.RunnerNotFound: Answer(404, Push.LATER),
    e.SessionReused: Answer(409, Push.POISON),
    e.SessionReplaced: Answer(409, Push.OVERTAKEN),
    e.SessionUnknown: Answer(409, Push.LATER),
    e.RunnerIdContested: Answer(409, Push.LATER),
    e.RunnerBusy: Answer(409, Push.POISON),
    e.Superseded: Answer(409, Push.OVERTAKEN),
    e.LogGap: Answer(409, Push.LATER),
    e.LogConflict: Answer(409, Push.POISON),
    e.LogStreamClosed: Answer(409, Push.POISON),
    e.LogChunkTooLarge: Answer(413, Push.POISON),
    e.LogLimitReached: Answer(413, Push.POISON),
    e.ArtifactNotFound: Answer(404, Push.POISON),
    e.ArtifactTooLarge: Answer(413, Push.POISON),
    e.ArtifactLimitReached: Answer(413, Push.POISON),
    e.ArtifactMissing: Answer(422, Push.LATER),
    e.ArtifactMismatch: Answer(422, Push.POISON),
    e.ArtifactVerifying: Answer(503, Push.LATER, retry_after=2),
    e.ArtifactGone: Answer(410, Push.POISON),
    e.DigestMismatch: Answer(502, Push.POISON),
    e.OutputConflict: Answer(409, Push.POISON),
    e.OutputNotFound: Answer(404, Push.LATER),
    e.RequestIdReused: Answer(409, Push.POISON),
    e.FeedEpochMismatch: Answer(409, Push.POISON),
    e.BucketNotOurs: Answer(503, Push.OURS),
    e.ConcurrencyKeyNotFound: Answer(404, Push.POISON),
    e.KeyInUse: Answer(409, Push.POISON),
    e.FeedCursorInvalid: Answer(400, Push.POISON),
    e.FeedEpochChanged: Answer(410, Push.POISON),
    e.FeedCursorExpired: Answer(410, Push.POISON),
    e.CallbackSubscriptionNotFound: Answer(404, Push.POISON),
    e.TooManySubscriptions: Answer(422, Push.POISON),
    e.ReplayRunning: Answer(409, Push.POISON),
    e.SigningKeyRetired: Answer(409, Push.POISON),
    e.EnvelopeInvalid: Answer(400, Push.POISON),
    e.HandlerNotAllowed: Answer(403, Push.POISON),
    e.HandlerUnknown: Answer(404, Push.LATER),
    e.StillRunning: Answer(503, Push.RUNNING, retry_after=1),
    e.HandlerFailed: Answer(500, Push.LATER),
    e.DeadLetterNotFound: Answer(404, Push.POISON),
    e.NotRedrivable: Answer(409, Push.POISON),
    e.AlreadyClosed: Answer(409, Push.POISON),
    e.StateNotFound: Answer(404, Push.LATER),
    e.StateChanged: Answer(412, Push.LATER),
    e.PreconditionMissing: Answer(428, Push.POISON),
    e.ScheduleNotFound: Answer(404, Push.POISON),
    e.DatabaseUnavailable: Answer(503, Push.OURS, retry_after=1),
    e.OutcomeUnknown: Answer(503, Push.OURS, retry_after=1),
    e.ObjectStoreUnavailable: Answer(503, Push.OURS, retry_after=1),
    e.MaskingUnavailable: Answer(503, Push.OURS, retry_after=5),
    e.Overloaded: Answer(503, Push.OURS, retry_after=1),
    e.LeadershipLost: Answer(503, Push.OURS, retry_after=1),
    e.SweepTooSlow: Answer(503, Push.OURS, retry_after=1),
    e.PublishFailed: Answer(503, Push.OURS, retry_after=1),
    e.Draining: Answer(503, Push.OURS, retry_after=1),
}


def answer_of(error: ServiceError) -> Answer:
    """How this error is answered."""
    return ANSWERS[type(error)]


def problem_body(
    error: ServiceError, request_id: str, envelope_id: str | None = None
) -> dict[str, Any]:
    """The members of a problem: type, title, status, detail, request_id, its values."""
    answer = answer_of(error)
    body: dict[str, Any] = {
        "type": TYPE_BASE + error.reason(),
        "title": type(error).sentence(),
        "status": answer.status,
        "reason": error.reason(),
        "detail": error.detail,
        "request_id": request_id,
        **{name: value for name, value in error.context.items() if name != "cause"},
    }
    if isinstance(error, e.RequestInvalid):
        body["errors"] = list(error.errors)
    if envelope_id is not None:
        body["envelope_id"] = envelope_id
    return body


def problem(error: ServiceError, request_id: str, envelope_id: str | None = None) -> Response:
    """The error as an answer, with the headers that belong to it."""
    answer = answer_of(error)
    body = problem_body(error, request_id, envelope_id)
    response = Response(orjson.dumps(body, default=str), answer.status, media_type=MEDIA_TYPE)
    if answer.retry_after is not None:
        response.headers["Retry-After"] = str(answer.retry_after)
    if isinstance(error, e.Unauthenticated):
        challenge = 'Bearer error="invalid_token"' if error.token_sent else "Bearer"
        response.headers["WWW-Authenticate"] = challenge
    return response


def plain_problem(
    status: int, reason: str, title: str, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """A problem that no error class of ours stands for: no such route, method not allowed, bugs."""
    body = {
        "type": TYPE_BASE + reason,
        "title": title,
        "status": status,
        "reason": reason,
        "detail": title,
        "request_id": request_id,
    }
    return Response(orjson.dumps(body), status, dict(headers or {}), MEDIA_TYPE)
