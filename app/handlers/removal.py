"""What must be so before any object is deleted, and what operators say about keeping things."""

from __future__ import annotations

from uuid import UUID

import structlog

from app.commands.buckets import check_marker
from app.domain.commands import GiveReason
from app.domain.errors import (
    ArtifactGone,
    ArtifactNotFound,
    AttemptNotFound,
    BucketNotOurs,
    FeedEpochMismatch,
)
from app.handlers.counting import counted
from app.handlers.masks import masked_fields
from app.services import Services
from app.store import feed_confirmations, legal_holds, signals
from app.store.legal_holds import Standing

_LOG = structlog.get_logger(__name__)


async def may_remove(services: Services) -> bool:
    """Whether objects may be deleted now: the bucket is ours, and the database did not move.

    A database that was restored or promoted may lack rows and holds, so an operator has to confirm
    it first. Raises ObjectStoreUnavailable or DatabaseUnavailable.
    """
    return await obstacle(services) is None


async def obstacle(services: Services) -> str | None:
    """Why nothing may be deleted now, in one sentence; None: it may."""
    epoch = await services.database.run(feed_confirmations.read)
    if not epoch.confirmed:
        _LOG.error("retention.unconfirmed", feed_epoch=epoch.number)
        return (
            f"The database was moved or restored (feed epoch {epoch.number}); "
            "an operator has to confirm it with retention:confirm."
        )
    try:
        await check_marker(services.database, services.objects)
    except BucketNotOurs as error:
        _LOG.error("retention.bucket_not_ours", bucket=services.settings.objects.bucket)
        return error.detail
    return None


async def confirm(services: Services, feed_epoch: int, by: str) -> None:
    """Let objects be removed in this feed epoch. Raises FeedEpochMismatch if it is another's."""
    with counted(services.metrics, "retention.confirm"):
        confirmed = await services.database.run(
            lambda conn: feed_confirmations.confirm_once(conn, feed_epoch, by)
        )
        if not confirmed:
            raise FeedEpochMismatch


async def hold_artifact(
    services: Services, artifact_id: UUID, given: GiveReason, *, held: bool, by: str
) -> tuple[UUID, int, Standing]:
    """Hold one artifact, or let it go. Raises ArtifactNotFound, or ArtifactGone: it is too late."""
    attempt_id = await services.database.run(
        lambda conn: legal_holds.find_attempt(conn, artifact_id)
    )
    if attempt_id is None:
        raise ArtifactNotFound
    changed, standing = await _change(services, attempt_id, artifact_id, given, held=held, by=by)
    if standing.artifacts == 0:
        raise ArtifactNotFound
    if held and standing.removing:
        raise ArtifactGone
    return attempt_id, changed, standing


async def hold_attempt(
    services: Services, attempt_id: UUID, given: GiveReason, *, held: bool, by: str
) -> tuple[int, Standing]:
    """Hold all that an attempt has stored by now, its logs too. Raises AttemptNotFound."""
    return await _change(services, attempt_id, None, given, held=held, by=by)


async def _change(
    services: Services,
    attempt_id: UUID,
    artifact_id: UUID | None,
    given: GiveReason,
    *,
    held: bool,
    by: str,
) -> tuple[int, Standing]:
    with counted(services.metrics, "artifact.hold" if held else "artifact.unhold"):
        given, _ = await masked_fields(services, given, "reason", "reason")
        found = await services.database.run(
            lambda conn: legal_holds.change(
                conn, attempt_id, artifact_id, held=held, by=by, reason=given.reason
            )
        )
        if found is None:
            raise AttemptNotFound
    if found[0]:
        _LOG.warning(
            "legal_hold.set" if held else "legal_hold.lifted",
            attempt_id=str(attempt_id),
            artifacts=found[0],
            by=by,
            reason=given.reason,
        )
        services.signals.wake(signals.attempt(attempt_id))
    return found
