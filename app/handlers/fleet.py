"""What operators do with the fleet and the concurrency keys."""

from __future__ import annotations

from uuid import UUID

import structlog

from app.domain.commands import GiveReason
from app.domain.errors import ConcurrencyKeyNotFound, KeyInUse, RunnerBusy, RunnerNotFound
from app.domain.records import Lease, Runner
from app.handlers.aftermath import move_up
from app.handlers.counting import counted
from app.handlers.masks import masked_fields
from app.handlers.runners import get_runner, offline_after
from app.services import Services
from app.store import fleet, holds, runners
from app.store.holds import Hold

_LOG = structlog.get_logger(__name__)


async def list_runners(
    services: Services, after: str, runner_kind: str | None, limit: int, *, include_offline: bool
) -> list[Runner]:
    """At most `limit` runners by id, above `after`."""
    lease_time = services.terms.lease_time
    return await services.database.run(
        lambda conn: runners.list_runners(
            conn,
            offline_after(services),
            lease_time,
            after=after,
            runner_kind=runner_kind,
            include_offline=include_offline,
            limit=limit,
        )
    )


async def get_detail(services: Services, runner_id: str) -> tuple[Runner, list[Lease]]:
    """A runner and the leases that it holds. Raises RunnerNotFound."""
    runner = await get_runner(services, runner_id)
    leases = await services.database.run(lambda conn: fleet.list_leases(conn, runner_id))
    return runner, leases


async def set_drained(services: Services, runner_id: str, by: str, *, drained: bool) -> Runner:
    """Drain a runner, or resume it. Raises RunnerNotFound."""
    with counted(services.metrics, "runner.drain" if drained else "runner.resume"):
        known = await services.database.run(
            lambda conn: fleet.set_drained(conn, runner_id, drained=drained, by=by)
        )
        if not known:
            raise RunnerNotFound
    return await get_runner(services, runner_id)


async def remove(services: Services, runner_id: str) -> None:
    """Remove a runner. Raises RunnerNotFound, or RunnerBusy while it holds a lease."""
    with counted(services.metrics, "runner.remove"):
        removed = await services.database.run(lambda conn: fleet.remove_idle(conn, runner_id))
        if removed is None:
            raise RunnerNotFound
        if not removed:
            raise RunnerBusy


async def list_holds(services: Services, after: str, limit: int) -> list[Hold]:
    """At most `limit` held keys, above `after`."""
    return await services.database.run(lambda conn: holds.list_holds(conn, after, limit))


async def free_key(services: Services, key: str, given: GiveReason, by: str) -> UUID:
    """Free a key; return the ended attempt that had it, whose timeline says by whom and why.

    Raises KeyInUse while its holder has not ended, ConcurrencyKeyNotFound if nothing holds it.
    """
    with counted(services.metrics, "key.free"):
        given, _ = await masked_fields(services, given, "reason", "reason")
        attempt_id = await services.database.run(
            lambda conn: holds.free(conn, key, by, given.reason)
        )
        if attempt_id is None:
            held = await services.database.run(lambda conn: holds.find(conn, key))
            raise ConcurrencyKeyNotFound if held is None else KeyInUse
    _LOG.warning("key.freed", attempt_id=str(attempt_id), by=by, reason=given.reason)
    await move_up(services, [key])
    return attempt_id
