"""What callers may ask of callback subscriptions: one model each."""

from __future__ import annotations

from typing import Annotated, Self
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, Field, StringConstraints, model_validator

from app.domain.commands import Command, JobType
from app.domain.feed import EVENT_OF_TYPE
from app.domain.receivers import MAX_URL

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"

_OURS = frozenset(
    {
        *("host", "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"),
        *("content-length", "content-type", "content-encoding", "accept-encoding", "expect"),
        *("user-agent", "webhook-id", "webhook-timestamp", "webhook-signature"),
        *("proxy-authorization", "proxy-connection", "metadata-flavor", "metadata"),
    }
)


def _known_type(value: str) -> str:
    if value not in EVENT_OF_TYPE:
        raise ValueError("is no event type; they are listed in the reference of events")
    return value


def _distinct(values: list[str] | list[UUID]) -> list[str] | list[UUID]:
    if len(set(values)) != len(values):
        raise ValueError("must not name anything twice")
    return values


def _not_ours(name: str) -> str:
    if name.lower() in _OURS or name.lower().startswith(("x-goog-metadata", "x-aws-ec2-metadata")):
        raise ValueError("is a header that the service sets itself, or never sends")
    return name.lower()


def _visible(value: str) -> str:
    if not value.isascii() or not value.isprintable():
        raise ValueError("must be visible ASCII characters")
    return value


EventTypeName = Annotated[str, StringConstraints(max_length=60), AfterValidator(_known_type)]
HeaderName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$"),
    AfterValidator(_not_ours),
]
Topic = Annotated[
    str,
    StringConstraints(
        pattern=r"^projects/[a-z0-9][a-z0-9:.-]{1,61}[a-z0-9]/topics/[A-Za-z][A-Za-z0-9._~+%-]{2,254}$"
    ),
]


class SecretRef(Command):
    """A header's value, by reference: the value itself is never sent to this API."""

    secret_ref: Annotated[
        str, StringConstraints(pattern=r"^(settings|file)://[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    ]
    """`settings://name`: of the setting `callbacks.secrets`; `file://name`: a file of that name in
    the folder `callbacks.secrets_folder`."""


class PutSubscription(Command):
    """All of a callback subscription. What is left out has its default, also in a later PUT."""

    url: Annotated[str, StringConstraints(min_length=1, max_length=MAX_URL)] | None = None
    """The receiver, `https://…`, without credentials. Either this or `topic`."""
    topic: Topic | None = None
    """A Pub/Sub topic, `projects/…/topics/…`: one message an event, ordered by attempt."""
    event_types: (
        Annotated[
            list[EventTypeName], Field(min_length=1, max_length=50), AfterValidator(_distinct)
        ]
        | None
    ) = None
    """Only events of these types, such as `attempt.succeeded`; unset: all."""
    operation_ids: (
        Annotated[list[UUID], Field(min_length=1, max_length=100), AfterValidator(_distinct)] | None
    ) = None
    """Only events of these operations; unset: all."""
    job_types: (
        Annotated[list[JobType], Field(min_length=1, max_length=50), AfterValidator(_distinct)]
        | None
    ) = None
    """Only events of attempts of these job types; unset: all."""
    headers: Annotated[dict[HeaderName, SecretRef], Field(max_length=16)] = Field(
        default_factory=dict
    )
    """Further headers; their values are references."""
    oidc_audience: (
        Annotated[str, StringConstraints(min_length=1, max_length=500), AfterValidator(_visible)]
        | None
    ) = None
    """Send `Authorization: Bearer` with an OIDC token of the service's Google identity for this
    audience."""
    max_batch: Annotated[int, Field(strict=True, ge=1, le=500)] = 1
    """Events a request at most. Above 1 the body is `{"events": [...]}`."""
    timeout_seconds: Annotated[int, Field(strict=True, ge=1, le=30)] = 10
    """Deadline of one request, from the name's resolution to the answer's end."""
    pause_after_seconds: Annotated[int, Field(strict=True, ge=60, le=2_592_000)] = 259_200
    """Pause when nothing was accepted for so long."""
    start: Annotated[str, StringConstraints(min_length=1, max_length=200)] = "now"
    """Where a new subscription begins: `now`, `oldest`, or a cursor of the feed. Of no meaning for
    one that exists."""

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.url is None) == (self.topic is None):
            raise ValueError("give either url or topic")
        if self.topic is not None and (self.headers or self.oidc_audience is not None):
            raise ValueError("headers and oidc_audience go with url, not with topic")
        if self.oidc_audience is not None and "authorization" in self.headers:
            raise ValueError("oidc_audience sets the header authorization itself")
        if len({name.lower() for name in self.headers}) != len(self.headers):
            raise ValueError("headers must not name one twice")
        return self


class RotateSecret(Command):
    """Begin a new version of the signing secret."""

    request_id: UUID
    """Made by the caller: a repeat with the same id gets the same secret."""
    overlap_seconds: Annotated[int, Field(strict=True, ge=0, le=604_800)] = 86_400
    """How long the version before stays valid beside it; 0: it ends at once."""


class ReplayEvents(Command):
    """Send events again: after a cursor, of one attempt, or of a time."""

    request_id: UUID
    """Made by the caller: a repeat with the same id begins nothing anew."""
    after: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    """A cursor of the feed, or `oldest`."""
    attempt_id: UUID | None = None
    """All events of this attempt, from its first one."""
    created_after: AwareDatetime | None = None
    """Events created at or after this moment."""
    created_before: AwareDatetime | None = None
    """Events created before this moment; goes with `created_after`."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = (self.after, self.attempt_id, self.created_after)
        if sum(way is not None for way in ways) != 1:
            raise ValueError("give one of after, attempt_id and created_after")
        if self.created_before is not None and (
            self.created_after is None or self.created_before <= self.created_after
        ):
            raise ValueError("created_before goes with an earlier created_after")
        for moment in (self.created_after, self.created_before):
            if moment is not None and not 1970 <= moment.year < 9000:  # noqa: PLR2004
                raise ValueError("must be a moment that events can be of")
        return self
