"""Answers that the control plane and operators get."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from app.domain.records import Attempt, HeartbeatRecord, Lease, LogRef


class Answer(BaseModel):
    """An answer body."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Page(Answer):
    """One page of a list."""

    next_page_token: str | None
    """Give it as `page_token` for the next page; null: this is the last one."""


class AttemptPage(Page):
    """Attempts, newest first."""

    items: list[Attempt]
    """The attempts of this page."""


class LeasePage(Page):
    """All leases of one attempt, the first one first."""

    items: list[Lease]
    """The leases of this page."""


class HeartbeatPage(Page):
    """Signs of life, newest first."""

    items: list[HeartbeatRecord]
    """The signs of life of this page."""


class LogPage(Page):
    """Stored chunks of an attempt's log, by lease, stream and offset."""

    items: list[LogRef]
    """The chunks of this page."""


class ProblemFault(Answer):
    """One fault of a request."""

    pointer: str
    """JSON pointer (RFC 6901) to the place in the body."""
    detail: str
    """What is wrong there."""


class Problem(Answer):
    """An error (RFC 9457). Further members carry the values that `detail` speaks of."""

    type: str
    """Where the reason is explained."""
    title: str
    """The general sentence."""
    status: int
    """The HTTP status."""
    reason: str
    """Stable, machine-readable."""
    detail: str
    """What is special to this case."""
    request_id: str
    """Finds the log line."""
    errors: list[ProblemFault] | None = None
    """For invalid requests: each fault."""
