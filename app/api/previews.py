"""Puts together what the next removal would take. Nothing here writes."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

from app.api.schemas.retention import DueOrphans, DuePartition, ExpiredObjects, RetentionPreview
from app.domain.errors import ObjectStoreUnavailable
from app.handlers import removal
from app.handlers.old_things import TICKETS_KEPT, find_abandoned, find_orphans, list_old
from app.services import Services
from app.store import feed_confirmations, old_partitions, previews
from app.store.database import Connection
from app.store.previews import Ages

_MOST = 10_000
_STORE_AWAY = "The object store does not answer."


async def preview(services: Services) -> RetentionPreview:
    """What is due now, by the same rules as the loops."""
    push, kept = services.settings.push, services.settings.retention
    ages = Ages(
        messages=timedelta(days=push.dedupe_days),
        dead_letters=timedelta(days=push.dead_letter_days),
        sessions=timedelta(days=kept.session_days),
        runners=timedelta(days=kept.runner_days),
        tickets=TICKETS_KEPT,
    )
    expired = await services.database.run(lambda conn: previews.list_expired(conn, _MOST))
    rows = await services.database.run(lambda conn: previews.count_rows(conn, ages, _MOST))
    epoch = await services.database.run(feed_confirmations.read)
    try:
        obstacle = await removal.obstacle(services)
        orphans = await _orphans(services)
    except ObjectStoreUnavailable:
        obstacle, orphans = _STORE_AWAY, None
    return RetentionPreview(
        feed_epoch=epoch.number,
        obstacle=obstacle,
        expired=[ExpiredObjects.model_validate(asdict(one)) for one in expired],
        partitions=await _partitions(services),
        rows=rows,
        orphans=orphans,
    )


async def _partitions(services: Services) -> list[DuePartition]:
    old = await list_old(services)

    async def look(conn: Connection) -> list[DuePartition]:
        return [
            DuePartition(
                name=one.name,
                byte_size=await old_partitions.size(conn, one),
                needed=one.stage == "attached" and await old_partitions.is_needed(conn, one),
            )
            for one in old[:100]
        ]

    return await services.database.run(look)


async def _orphans(services: Services) -> DueOrphans:
    page = await services.objects.list_objects("")
    sizes = {one.key: one.byte_size for one in page}
    found = await find_orphans(services, page)
    uploads = await services.objects.multipart.list_open(services.settings.objects.prefix)
    return DueOrphans(
        looked_at=len(page),
        objects=len(found),
        byte_size=sum(sizes[one.key] for one in found),
        uploads=len(await find_abandoned(services, uploads)),
    )
