"""Gives up uploads in parts that nobody will complete, so that their parts do not stay."""

from __future__ import annotations

from app.handlers.old_things import find_abandoned
from app.handlers.removal import may_remove
from app.loops.loop import Result
from app.objects.multipart import Upload
from app.services import Services

_PAGE = 1000


class AbortUploads:
    """One pass looks at one page of uploads. The same brakes as for orphans."""

    name = "abort_uploads"
    interval_seconds = 3600.0
    leader_only = True

    def __init__(self) -> None:
        """Begins at the first key."""
        self._after: Upload | None = None

    async def run_once(self, services: Services) -> Result:
        """Abort what is older than a day and belongs to no open ticket, until it is gone."""
        if not await may_remove(services):
            return Result(0)
        prefix = services.settings.objects.prefix
        page = await services.objects.multipart.list_open(prefix, after=self._after)
        self._after = page[-1] if len(page) == _PAGE else None
        given_up = await find_abandoned(services, page)
        for upload in given_up:
            await services.objects.multipart.abort(upload.key, upload.upload_id)
        services.metrics.removed.labels("uploads").inc(len(given_up))
        return Result(len(given_up), more=self._after is not None)
