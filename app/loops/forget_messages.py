"""Forgets messages that cannot come again, and dead letters that nobody needs any more."""

from __future__ import annotations

from datetime import timedelta

from app.loops.loop import Result
from app.services import Services
from app.store import dead_letters, messages
from app.store.database import Connection

_BATCH = 2000


class ForgetMessages:
    """Removes old rows. A message is remembered longer than Pub/Sub can keep it undelivered."""

    name = "forget_messages"
    interval_seconds = 600.0
    leader_only = True

    async def run_once(self, services: Services) -> Result:
        """Remove one batch of each kind."""
        push = services.settings.push
        remembered = timedelta(days=push.dedupe_days)
        kept = timedelta(days=push.dead_letter_days)

        async def forget(conn: Connection) -> list[int]:
            return [
                await messages.remove_processed(conn, remembered, _BATCH),
                await messages.remove_failures(conn, remembered, _BATCH),
                await dead_letters.remove_old(conn, kept, _BATCH),
            ]

        removed = await services.database.run(forget)
        return Result(sum(removed), more=max(removed) == _BATCH)
