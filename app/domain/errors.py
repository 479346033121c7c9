"""One class per fact that a caller may be told. They know nothing of HTTP.

A class's docstring is the sentence shown; `detail` adds what is special to this case. One table in
`api/problems.py` maps each class to a status and says whether a push may be retried; a test fails
when a class is missing there. Nothing here ever carries a value that a caller sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class ServiceError(Exception):
    """The request could not be carried out."""

    def __init__(self, detail: str | None = None, **context: Any) -> None:
        """`detail` replaces the general sentence; `context` holds the values it speaks of."""
        super().__init__(detail or self.sentence())
        self.detail = detail or self.sentence()
        self.context: Mapping[str, Any] = context

    def spoils_only_its_row(self) -> bool:
        """Whether, in a batch, others may succeed where this one cannot."""
        return not isinstance(self, (DatabaseUnavailable, OutcomeUnknown, Overloaded))

    @classmethod
    def sentence(cls) -> str:
        """The first paragraph of the class's docstring."""
        return " ".join((cls.__doc__ or "").split("\n\n", 1)[0].split())

    @classmethod
    def reason(cls) -> str:
        """The stable machine-readable reason: the class's name in kebab case."""
        name = cls.__name__
        return "".join("-" + c.lower() if c.isupper() else c for c in name).removeprefix("-")


class SettingsInvalid(ServiceError):
    """The configuration is not usable."""

    def __init__(self, problems: Sequence[str]) -> None:
        """`problems`: one sentence each, naming the variable to set."""
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


# --- what was sent -------------------------------------------------------------------------------


class RequestInvalid(ServiceError):
    """The request does not have the required form."""

    def __init__(self, errors: Sequence[Mapping[str, str]], detail: str | None = None) -> None:
        """`errors`: `{pointer, detail}` each, the pointer by RFC 6901, without the input."""
        super().__init__(detail)
        self.errors = tuple(errors)


class SecretInRequest(RequestInvalid):
    """The request holds what looks like a secret; name it by a reference instead."""


class BodyNotJson(ServiceError):
    """The body is not a JSON document."""


class BodyTooLarge(ServiceError):
    """The body is larger than this service accepts."""


class ContentEncodingUnsupported(ServiceError):
    """The body's content encoding is not supported here."""


class BatchTooLarge(ServiceError):
    """The batch holds more items than this service accepts."""


class PageTokenInvalid(ServiceError):
    """The page token is not one that this list gave out."""


class PageTokenMismatch(ServiceError):
    """The page token belongs to a list with other filters."""


class FilterTooWide(ServiceError):
    """This filter would read too much; name an operation, plan or node, or a shorter time."""


class RangeNotSatisfiable(ServiceError):
    """The requested range lies beyond the end of the content."""


# --- who sent it ---------------------------------------------------------------------------------


class Unauthenticated(ServiceError):
    """A valid identity token is required."""

    def __init__(self, cause: str, *, token_sent: bool) -> None:
        """`cause` is for logs and metrics only and never leaves the service."""
        super().__init__()
        self.cause = cause
        self.token_sent = token_sent


class Forbidden(ServiceError):
    """This identity may not do that."""


class IdentityUnavailable(ServiceError):
    """Identity tokens cannot be checked at the moment; try again."""


# --- attempts ------------------------------------------------------------------------------------


class AttemptNotFound(ServiceError):
    """There is no attempt with this id."""


class IdempotencyKeyReused(ServiceError):
    """This idempotency key was used for another request."""


class TooManyPlacements(ServiceError):
    """Too many placements are in use for this kind; a target belongs into concurrency_key."""


class AlreadyTerminal(ServiceError):
    """The attempt has already ended."""


class AttemptEnded(ServiceError):
    """The attempt has ended; stop working on it."""


class Cancelled(ServiceError):
    """The attempt was cancelled; stop working on it."""


# --- leases --------------------------------------------------------------------------------------


class LeaseNotFound(ServiceError):
    """There is no lease with this id."""


class LeaseTokenInvalid(ServiceError):
    """The lease token is missing or does not belong to this lease."""


class LeaseExpired(ServiceError):
    """The lease has expired; stop working on the attempt."""


class LeaseRevoked(ServiceError):
    """The lease was revoked; stop working on the attempt."""


class LeaseReleased(ServiceError):
    """The lease was given back; stop working on the attempt."""


class AlreadyStarted(ServiceError):
    """The attempt has started and cannot be begun again elsewhere; complete it, or fail it."""


class TokenKeyRetired(ServiceError):
    """The key of this request's lease tokens was retired; claim again with a new request_id."""


# --- runners -------------------------------------------------------------------------------------


class RunnerNotFound(ServiceError):
    """There is no runner with this id."""


class SessionReused(ServiceError):
    """This session is registered with another profile; a restart needs a new session_id."""


class SessionReplaced(ServiceError):
    """A newer session of this runner has taken over; stop working."""


class SessionUnknown(ServiceError):
    """This session is not registered for this runner."""


class RunnerIdContested(ServiceError):
    """Several processes are taking this runner id from each other; give each its own."""


class RunnerBusy(ServiceError):
    """The runner still holds an active lease."""


class Superseded(ServiceError):
    """A newer claim of this runner session with the same request_id has taken over."""


# --- logs ----------------------------------------------------------------------------------------


class LogGap(ServiceError):
    """The chunk begins beyond the end of what is stored; send the missing bytes first."""


class LogConflict(ServiceError):
    """Other bytes are already stored at this place of the stream."""


class LogStreamClosed(ServiceError):
    """The stream was closed by a final chunk."""


class LogChunkTooLarge(ServiceError):
    """The chunk is larger than this service accepts."""


class LogLimitReached(ServiceError):
    """The attempt's log limit is reached; nothing further is stored. Stop sending this log."""


# --- artifacts, outputs and evidence --------------------------------------------------------------


class ArtifactNotFound(ServiceError):
    """There is no artifact with this id here."""


class ArtifactTooLarge(ServiceError):
    """The artifact is larger than this service accepts."""


class ArtifactLimitReached(ServiceError):
    """The attempt has asked for as many artifacts as it may."""


class ArtifactMissing(ServiceError):
    """The artifact's body has not arrived in the store; upload it first."""


class ArtifactMismatch(ServiceError):
    """The uploaded body is not what was announced; nothing may point at it."""


class ArtifactVerifying(ServiceError):
    """The artifact's body is still being verified; send the same again in a moment."""


class ArtifactGone(ServiceError):
    """The artifact's body has been removed, or is being removed."""


class DigestMismatch(ServiceError):
    """The stored body no longer has its recorded digest, so it is not served."""


class OutputConflict(ServiceError):
    """The attempt already has another output of this name; an output is written once."""


class OutputNotFound(ServiceError):
    """The attempt has no output with this id."""


class RequestIdReused(ServiceError):
    """This request_id was used for something else."""


class FeedEpochMismatch(ServiceError):
    """This is not the number of the feed's current epoch."""


class BucketNotOurs(ServiceError):
    """The bucket's marker names another installation; nothing in it may be deleted."""


# --- concurrency keys ----------------------------------------------------------------------------


class ConcurrencyKeyNotFound(ServiceError):
    """Nothing holds this concurrency key."""


class KeyInUse(ServiceError):
    """The holder of this concurrency key has not ended."""


# --- the feed ------------------------------------------------------------------------------------


class FeedCursorInvalid(ServiceError):
    """This is no cursor of the feed."""


class FeedEpochChanged(ServiceError):
    """The database was restored or replaced after this cursor; go on at `start`."""


class FeedCursorExpired(ServiceError):
    """Events after this cursor have been removed by age; go on at `oldest`."""


# --- callbacks -----------------------------------------------------------------------------------


class CallbackSubscriptionNotFound(ServiceError):
    """There is no callback subscription of this name."""


class TooManySubscriptions(ServiceError):
    """There are as many callback subscriptions as this service allows."""


class ReplayRunning(ServiceError):
    """Another replay of this subscription has not come to its end."""


class SigningKeyRetired(ServiceError):
    """The server key of this signing secret was retired; rotate the secret."""


# --- messages ------------------------------------------------------------------------------------


class EnvelopeInvalid(ServiceError):
    """The message is not a valid envelope."""


class HandlerNotAllowed(ServiceError):
    """This subscription may not call this handler."""


class HandlerUnknown(ServiceError):
    """No handler has this name here."""


class StillRunning(ServiceError):
    """The same message is being worked on elsewhere."""


class HandlerFailed(ServiceError):
    """The handler failed."""


class DeadLetterNotFound(ServiceError):
    """There is no dead letter with this id."""


class NotRedrivable(ServiceError):
    """This dead letter cannot be sent to its handler again."""


class AlreadyClosed(ServiceError):
    """This dead letter was redriven or discarded before."""


# --- state documents -----------------------------------------------------------------------------


class StateNotFound(ServiceError):
    """There is no state document under this key."""


class StateChanged(ServiceError):
    """The state document has another version than the one that was expected."""


class PreconditionMissing(ServiceError):
    """Say which version is to be replaced: If-Match with its ETag, or If-None-Match with *."""


# --- schedules -----------------------------------------------------------------------------------


class ScheduleNotFound(ServiceError):
    """There is no schedule with this name."""


# --- us ------------------------------------------------------------------------------------------


class DatabaseUnavailable(ServiceError):
    """The database cannot be reached; nothing was changed. Try again."""


class OutcomeUnknown(ServiceError):
    """It is not known whether the request took effect; repeat it as it was."""


class MaskingUnavailable(ServiceError):
    """Whether this holds a secret cannot be told at the moment; try again."""


class ObjectStoreUnavailable(ServiceError):
    """The object store cannot be reached; nothing was recorded. Try again."""


class Overloaded(ServiceError):
    """Too much is in flight here; try again."""


class LeadershipLost(ServiceError):
    """This instance does not lead the sweeps any more; another one goes on."""


class SweepTooSlow(ServiceError):
    """A sweep did not end within its time and was broken off."""


class PublishFailed(ServiceError):
    """The topic did not take the message; it is sent again."""


class Draining(ServiceError):
    """This instance is stopping; try again."""
