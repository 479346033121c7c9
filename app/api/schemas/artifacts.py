"""Answers about artifacts, outputs and evidence."""

from __future__ import annotations

from uuid import UUID

from app.api.schemas.control import Answer, Page
from app.domain.lifecycle import RetentionClass, Status, UploadMethod
from app.domain.records import Evidence, Output


class SignedRequest(Answer):
    """A request to the object store. Every header is signed: send all of them as they are."""

    method: str
    """The HTTP method."""
    url: str
    """The address, good for `url_seconds`. Whoever has it may use it: do not log it."""
    headers: dict[str, str]
    """The headers to send."""


class UploadPart(Answer):
    """One part of an upload."""

    part_number: int
    """1, 2, 3 …"""
    offset: int
    """Where it begins in the body."""
    byte_size: int
    """Its exact size."""
    request: SignedRequest
    """How to send it."""


class ArtifactTicket(Answer):
    """The right to upload one artifact, and how."""

    artifact_id: UUID
    """Name it in outputs and evidence; the first one that does makes it an artifact."""
    name: str | None
    """As it is stored: masked."""
    content_type: str
    """What it is."""
    digest: str
    """What the body must have."""
    byte_size: int
    """How long it must be."""
    retention_class: RetentionClass
    """How long it is kept."""
    method: UploadMethod
    """How the body comes: `single` by `upload`, `parts` by `parts`, `service` to `content_path`,
    `known` not at all, since the operation has these bytes already."""
    verified: bool
    """Whether the body is there and verified. Nothing needs to be uploaded then."""
    recorded: bool
    """Whether it is an artifact already."""
    upload: SignedRequest | None
    """Send the whole body with it."""
    parts: list[UploadPart]
    """Send each of these parts, in any order, at once if you like."""
    content_path: str | None
    """Where this service takes the body itself, by PUT; null where it is too large for that."""
    url_seconds: int
    """How long the addresses live; send the request for the ticket again for new ones."""


class RecordedOutput(Answer):
    """What stands recorded."""

    output: Output
    """The output."""


class RecordedEvidence(Answer):
    """What stands recorded."""

    evidence: Evidence
    """The evidence."""


class OutputPage(Page):
    """The outputs of one attempt, by name."""

    attempt_status: Status
    """They are its result if this is `succeeded`, and otherwise what it got done until now."""
    items: list[Output]
    """The outputs of this page."""


class EvidencePage(Page):
    """The evidence of one attempt, in the order of its recording."""

    attempt_status: Status
    """The attempt's status now."""
    items: list[Evidence]
    """The evidence of this page."""
