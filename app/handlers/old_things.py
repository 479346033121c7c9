"""What is old enough to go, found by a look that changes nothing: for the loops and the preview."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from app.commands.buckets import MARKER
from app.objects.multipart import Upload
from app.objects.store import Listed
from app.services import Services
from app.store import old_partitions, orphans
from app.store.database import Connection
from app.store.old_partitions import Partition
from app.store.orphans import Candidate, Verdict

TICKETS_KEPT = timedelta(days=30)
"""Rows of closed tickets, so that a late repeat still finds out what became of its upload."""

# A lease may be in its grace by another clock's measure, and a request under way.
_MARGIN = timedelta(hours=1)


async def list_old(services: Services) -> list[Partition]:
    """Partitions whose time is over, the oldest first, after those whose removal has begun."""
    kept = services.settings.retention
    events = None if kept.events_days is None else timedelta(days=kept.events_days)
    beats = timedelta(days=kept.heartbeats_days)
    return await services.database.run(lambda conn: old_partitions.list_old(conn, beats, events))


async def find_orphans(services: Services, page: Sequence[Listed]) -> list[Candidate]:
    """Those of these objects that nothing points at."""
    candidates = [_candidate(services, one) for one in page if _is_ours(services, one.key)]
    verdicts = await services.database.run(lambda conn: judge(services, conn, candidates))
    return [one for one, verdict in zip(candidates, verdicts, strict=True) if verdict != "kept"]


def _is_ours(services: Services, key: str) -> bool:
    objects = services.objects
    return key.startswith(objects.settings.prefix) and key != objects.full_key(MARKER)


def _candidate(services: Services, one: Listed) -> Candidate:
    """A log's key names its attempt: `logs/<attempt>/…`."""
    attempt_id = None
    parts = one.key.removeprefix(services.settings.objects.prefix).split("/")
    if parts[0] == "logs" and len(parts) > 1:
        with suppress(ValueError):
            attempt_id = UUID(parts[1])
    return Candidate(one.key, one.modified_at, attempt_id)


async def judge(
    services: Services, conn: Connection, candidates: Sequence[Candidate]
) -> list[Verdict]:
    """How each object stands now, in the caller's transaction."""
    return await orphans.judge(
        conn,
        services.settings.objects.bucket,
        candidates,
        timedelta(hours=services.settings.retention.orphan_hours),
        timedelta(seconds=services.settings.leases.log_grace_seconds) + _MARGIN,
    )


async def find_abandoned(services: Services, page: Sequence[Upload]) -> list[Upload]:
    """Those of these uploads in parts that are old and that nobody can complete any more."""
    age = timedelta(hours=services.settings.retention.orphan_hours)
    verdicts = await services.database.run(
        lambda conn: orphans.judge_uploads(
            conn,
            services.settings.objects.bucket,
            [one.key for one in page],
            [one.upload_id for one in page],
            [one.initiated_at for one in page],
            age,
        )
    )
    return [one for one, abandoned in zip(page, verdicts, strict=True) if abandoned]
