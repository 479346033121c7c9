"""What a caller does about each error: shown at `/docs/errors` and in the reference.

A test fails when an error has no advice here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.api.problems import ANSWERS, Answer
from app.domain import errors as e
from app.domain.errors import ServiceError

_STOP = "Stop the work and touch nothing further; somebody else may have it, or nobody wants it."
_AGAIN = "Send the same request again after `Retry-After` seconds. Every write may be repeated."
_NEW_SESSION = "Register with a new `session_id`, made at the start of the process."

ADVICE: Mapping[type[ServiceError], str] = {
    e.SettingsInvalid: "Set the variables that the lines name, then start again.",
    e.RequestInvalid: "Mend the places that `errors` points to.",
    e.SecretInRequest: (
        'Put `{"secret_ref": "vault://…"}` where `errors` points to; the runner fetches it itself.'
    ),
    e.BodyNotJson: "Send one JSON document in UTF-8.",
    e.BodyTooLarge: "Send less; `limit_bytes` says how much is accepted.",
    e.ContentEncodingUnsupported: "Send the body uncompressed.",
    e.BatchTooLarge: "Send smaller batches; `limit` says how many items one may hold.",
    e.PageTokenInvalid: "Begin the list again without `page_token`.",
    e.PageTokenMismatch: "Keep all filters while paging, or begin again without `page_token`.",
    e.FilterTooWide: "Narrow the list. It is refused and never answered in part.",
    e.RangeNotSatisfiable: "Ask for a range that begins before the end, or for no range.",
    e.Unauthenticated: "Get a fresh token from your issuer. The service's log names the cause.",
    e.Forbidden: "Use an identity with the right role, or have its grant changed.",
    e.IdentityUnavailable: _AGAIN,
    e.AttemptNotFound: "Check the id; attempts are never deleted.",
    e.IdempotencyKeyReused: "Use a new key for new work; `attempt_id` names the one that has it.",
    e.TooManyPlacements: (
        "Put what varies from target to target into `concurrency_key`, not into a label."
    ),
    e.AlreadyTerminal: "Read the attempt: its end is final.",
    e.AttemptEnded: _STOP,
    e.Cancelled: _STOP,
    e.LeaseNotFound: "Check the id.",
    e.LeaseTokenInvalid: "Send the `lease_token` that the claim answered for this very lease.",
    e.LeaseExpired: _STOP,
    e.LeaseRevoked: _STOP,
    e.LeaseReleased: _STOP,
    e.AlreadyStarted: "Complete the lease with what is known, or fail it.",
    e.TokenKeyRetired: "Claim again with a new `request_id`.",
    e.RunnerNotFound: "Register the runner first.",
    e.SessionReused: _NEW_SESSION,
    e.SessionReplaced: "Stop all work of this process; a newer one speaks for the runner.",
    e.SessionUnknown: "Register this session before it claims or reports.",
    e.RunnerIdContested: "Give every process a runner id of its own, then wait a minute.",
    e.RunnerBusy: "Wait until its leases have ended.",
    e.Superseded: "Take the answer of the newer claim.",
    e.LogGap: "Send the bytes from `next_offset` on.",
    e.LogConflict: (
        "Do not overwrite: what is stored stays. Look for two writers, or a reset offset."
    ),
    e.LogStreamClosed: "Send nothing further to this stream; `final` closed it.",
    e.LogChunkTooLarge: "Send smaller chunks; `limit_bytes` says how large they may be.",
    e.LogLimitReached: "Stop sending. What was stored before stays readable.",
    e.ArtifactNotFound: "Check the id. A ticket becomes an artifact when something names it.",
    e.ArtifactTooLarge: "Make it smaller or split it; `limit_bytes` says how large one may be.",
    e.ArtifactLimitReached: "Put many small files into one archive.",
    e.ArtifactMissing: "Upload the body as the ticket says, then send the same again.",
    e.ArtifactMismatch: (
        "Compute size and SHA-256 anew from what you send, and ask for a new ticket."
    ),
    e.ArtifactVerifying: _AGAIN,
    e.ArtifactGone: "It is past its retention. The attempt's timeline says what it was.",
    e.DigestMismatch: "Tell your operator: the store's content has changed behind the service.",
    e.OutputConflict: "Use another name. What is recorded stays.",
    e.OutputNotFound: "Record the output first, in the same attempt.",
    e.RequestIdReused: "Use a new `request_id` for each new thing, and the same one to repeat.",
    e.FeedEpochMismatch: "Read `retention:preview`, look at what it says, confirm that epoch.",
    e.BucketNotOurs: (
        "Point the service at its own bucket or prefix; `docs/storage.md` says how one is "
        "taken over."
    ),
    e.ConcurrencyKeyNotFound: "Check the key; it is free.",
    e.KeyInUse: "Wait for the attempt that holds it to end, or end it.",
    e.FeedCursorInvalid: "Use `next_cursor` as it was given, or leave `after` out to begin anew.",
    e.FeedEpochChanged: (
        "Go on with `start` as `after`. What you read after the restored state has been undone: "
        "compare the attempts that you know with `GET /v1/attempts/{attempt_id}`."
    ),
    e.FeedCursorExpired: (
        "Go on with `oldest` as `after`; read the attempts that you follow, for what lies between "
        "is gone."
    ),
    e.CallbackSubscriptionNotFound: "Check the name, or create it with PUT.",
    e.TooManySubscriptions: (
        "Remove one that nobody needs, or raise `callbacks.max_subscriptions`. One subscription "
        "without filters serves a receiver better than many narrow ones."
    ),
    e.ReplayRunning: "Wait until `replay.running` is false, then ask again.",
    e.SigningKeyRetired: "Rotate the secret with a new `request_id`.",
    e.EnvelopeInvalid: "Publish `{v, to, id, data}` as JSON, in base64, in a wrapped message.",
    e.HandlerNotAllowed: "Name the handler under this subscription in `push.subscriptions`.",
    e.HandlerUnknown: "Check `to`, or wait until every instance has the newer version.",
    e.StillRunning: "Nothing: it is delivered again, and then known to be done.",
    e.HandlerFailed: "Look for `push.handler_failed` in the service's log.",
    e.DeadLetterNotFound: "Check the id; old dead letters are removed after a while.",
    e.NotRedrivable: "Publish the message again, corrected; then discard the dead letter.",
    e.AlreadyClosed: "Read the dead letter: it says by whom and when it was closed.",
    e.StateNotFound: "Check the key, or create the document with `If-None-Match: *`.",
    e.StateChanged: "Read the document, apply your change to it, send its new `ETag`.",
    e.PreconditionMissing: "Read the document and send its `ETag` as `If-Match`.",
    e.ScheduleNotFound: "Check the name, or create the schedule.",
    e.DatabaseUnavailable: _AGAIN,
    e.OutcomeUnknown: "Send the same request again: the repeat says what became of it.",
    e.ObjectStoreUnavailable: _AGAIN,
    e.MaskingUnavailable: "Send it again later; `/readyz` of that instance says what is wrong.",
    e.Overloaded: _AGAIN,
    e.LeadershipLost: "Nothing; `GET /v1/scheduler` says who leads.",
    e.SweepTooSlow: "Look at the sweep in `GET /v1/scheduler`; it is tried again.",
    e.PublishFailed: "Check the topic and this service's right to publish to it.",
    e.Draining: "Send the same request again; another instance answers it.",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """One line of the list of errors."""

    reason: str
    sentence: str
    advice: str
    answer: Answer


PLAIN = (
    (404, "not-found", "There is no such address.", "Check path and method."),
    (405, "method-not-allowed", "This address does not know that method.", "Check the method."),
    (500, "internal", "This should not have happened; it was logged.", "Report its `request_id`."),
)
"""Status, reason, sentence and advice of the answers that no error class stands for."""


def reasons() -> list[Reason]:
    """All errors of this service, in the order of their definition."""
    return [
        Reason(error.reason(), error.sentence(), ADVICE.get(error, ""), answer)
        for error, answer in ANSWERS.items()
    ]
