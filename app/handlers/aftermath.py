"""What follows a commit: counting, waking who waits, and moving up the lines of freed keys.

Nothing here may be needed for correctness: a process that dies before it leaves the same to a
sweep, which finds it within seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from app.domain.errors import ServiceError
from app.services import Services
from app.store import holds, signals
from app.store.ends import End

_LOG = structlog.get_logger(__name__)


async def tell(services: Services, ended: Iterable[End]) -> None:
    """Count ends, wake who waits for the attempts or for the work set free, move lines up."""
    keys: set[str] = set()
    ended = list(ended)
    if ended:
        services.signals.wake(signals.FEED)
    for end in ended:
        consequence = "continues" if end.continues else end.status.value
        services.metrics.leases_ended.labels(end.lease_word or "none", consequence).inc()
        services.signals.wake(signals.attempt(end.attempt_id))
        if end.continues and end.placement_class_id is not None:
            services.signals.wake_for_work(end.runner_kind, end.placement_class_id)
        if end.concurrency_key is not None:
            keys.add(end.concurrency_key)
    await move_up(services, keys)


async def move_up(services: Services, keys: Iterable[str]) -> None:
    """Let the first in line of each of these keys be claimed, if the key is free."""
    wanted = sorted(set(keys))
    if not wanted:
        return
    try:
        moved = await services.database.run(lambda conn: holds.move_up(conn, wanted))
    except ServiceError as error:
        _LOG.warning("keys.not_moved_up", reason=error.reason())
        return
    for kind, class_id in moved:
        services.signals.wake_for_work(kind, class_id)
