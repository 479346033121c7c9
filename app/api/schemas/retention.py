"""Answers about what is kept, held and removed."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from app.api.schemas.control import Answer
from app.domain.commands import Command
from app.domain.lifecycle import RetentionClass
from app.store.previews import Fate


class Hold(Answer):
    """What an attempt has stored (or the one artifact), and what of it is under legal hold."""

    attempt_id: UUID
    """The attempt."""
    artifact_id: UUID | None
    """The artifact; unset: all of the attempt's, its log objects among them."""
    changed: int
    """How many were held, or let go, by this request; 0: it was so already."""
    artifacts: int
    """How many there are."""
    held: int
    """How many of them are held now."""
    removing: int
    """How many are being removed, since before this request."""


class ConfirmObjects(Command):
    """Say that this database still owns the bucket's objects, after it was moved or restored."""

    feed_epoch: Annotated[int, Field(ge=1, le=2**31 - 1)]
    """The current one, as the preview shows it."""


class ConfirmedEpoch(Answer):
    """The feed epoch in which objects may be removed."""

    feed_epoch: int
    """Its number."""


class ExpiredObjects(Answer):
    """Expired objects of one kind and class, and what becomes of them."""

    fate: Fate
    """`removed`, or why not: `held` by law, shown as `evidence`, its attempt `open`, or `shared`
    with rows that have not expired (a log goes as a whole)."""
    kind: str
    """`artifact` or `log`."""
    retention_class: RetentionClass
    """Their class."""
    objects: int
    """Objects in the bucket."""
    rows: int
    """Rows that point at them."""
    byte_size: int
    """Bytes of these objects."""


class DuePartition(Answer):
    """One partition whose time is over."""

    name: str
    """Its table."""
    byte_size: int
    """Its size on disk, with indexes."""
    needed: bool
    """Whether an open attempt or an undelivered event keeps it for now."""


class DueOrphans(Answer):
    """Objects that nothing points at, among the first that a walk would look at."""

    looked_at: int
    """Objects that were looked at, the first ones by key; at most a thousand."""
    objects: int
    """How many of them nothing points at."""
    byte_size: int
    """Their bytes."""
    uploads: int
    """Abandoned uploads in parts, among the first thousand."""


class RetentionPreview(Answer):
    """What the next run would remove. Counts stop at 10,000 of a kind."""

    feed_epoch: int
    """The current one."""
    obstacle: str | None
    """Why no object would be deleted now; unset: nothing is in the way."""
    expired: list[ExpiredObjects]
    """Expired artifacts and logs."""
    partitions: list[DuePartition]
    """Partitions of heartbeats and events, the oldest first."""
    rows: dict[str, int]
    """Rows that would go, by kind; `undated` ones only get their expiry."""
    orphans: DueOrphans | None
    """Unset where the object store does not answer."""
