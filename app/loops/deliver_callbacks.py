"""Serves callback subscriptions: takes their leases, runs a worker each, looks what is due.

Each worker has connections and tasks of its own; what they share is a bounded part of the pool, one
look a second at what is due, and one look at the end of the feed, which wakes those who wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from uuid import UUID

import structlog

from app import failpoints
from app.domain.errors import ServiceError
from app.domain.ids import new_id
from app.loops.callback_repair import Repair
from app.loops.callback_worker import Overtaken, Worker
from app.loops.loop import Result
from app.services import Services
from app.store import callback_leases, feed
from app.store.callback_leases import Fence
from app.store.database import Connection

_LOG = structlog.get_logger(__name__)
_TAKEN_AT_ONCE = 20
_STOP_SECONDS = 2.0
_LOOK_ANYWAY_SECONDS = 5.0
_POLL_SECONDS = 0.03
_IDLE_POLL_SECONDS = 0.2
_BUSY_FOR_SECONDS = 10.0
_LONGEST_PAUSE_SECONDS = 10.0


class Served:
    """A worker and its two tasks."""

    def __init__(self, services: Services, fence: Fence, database: asyncio.Semaphore) -> None:
        self.worker = Worker(services, fence, database)
        self.repair = Repair(self.worker)
        self.something_new = asyncio.Event()
        self.live_due = asyncio.Event()
        self.repair_due = asyncio.Event()
        self._tasks = (
            asyncio.create_task(self._keep(self._live), name="callback.live"),
            asyncio.create_task(self._keep(self._apart), name="callback.apart"),
        )

    @property
    def fence(self) -> Fence:
        """The lease that it works under."""
        return self.worker.fence

    @property
    def has_ended(self) -> bool:
        """Whether one of the two has found that it is not ours any more."""
        return any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        """Let running requests end within a moment, then give up."""
        self.worker.stopping = True
        for event in (self.something_new, self.live_due, self.repair_due):
            event.set()
        _, running = await asyncio.wait(self._tasks, timeout=_STOP_SECONDS)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        await self.worker.targets.close()
        await self.repair.targets.close()

    async def _keep(self, once: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            try:
                await once()
                failures = 0
            except Overtaken:
                return
            except ServiceError as error:
                failures += 1
                _LOG.warning("callback.failed", reason=error.reason(), **self._name())
            except Exception:  # noqa: BLE001 - a bug must not end what others depend on
                failures += 1
                _LOG.exception("callback.failed", **self._name())
            if failures:
                await asyncio.sleep(min(0.2 * 2**failures, _LONGEST_PAUSE_SECONDS))

    def _name(self) -> dict[str, str]:
        return {"subscription_id": str(self.fence.subscription_id)}

    async def _live(self) -> None:
        self.something_new.clear()
        wait = await self.worker.live_once()
        if wait.seconds == 0:
            return
        event = self.something_new if wait.seconds is None else self.live_due
        if wait.seconds is not None:
            event.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait.seconds or _LOOK_ANYWAY_SECONDS):
                await event.wait()

    async def _apart(self) -> None:
        await self.repair_due.wait()
        self.repair_due.clear()
        if await self.repair.run_once():
            self.repair_due.set()


class DeliverCallbacks:
    """All the subscriptions that this process serves."""

    name = "deliver_callbacks"
    interval_seconds = 1.0
    leader_only = False

    def __init__(self) -> None:
        self.holder = new_id()
        self.served: dict[UUID, Served] = {}
        self._database: asyncio.Semaphore | None = None
        self._watching: asyncio.Task[None] | None = None

    async def run_once(self, services: Services) -> Result:
        """Give up what is lost, prolong what is held, take what is free, wake what is due."""
        database = self._bound(services)
        ttl = timedelta(seconds=services.settings.callbacks.lease_seconds)
        await self._drop(
            services, [one for one in self.served.values() if one.has_ended], lost=False
        )
        await self._renew(services, ttl)
        taken = await services.database.run(
            lambda conn: callback_leases.take(conn, self.holder, ttl, _TAKEN_AT_ONCE)
        )
        if failpoints.ARMED and taken:
            await failpoints.hit("callback.after_claim")
        for fence in taken:
            self.served[fence.subscription_id] = Served(services, fence, database)
        await self._wake_due(services)
        if self._watching is None and self.served:
            self._watching = asyncio.create_task(self._watch(services), name="callback.watch")
        return Result(len(taken), more=len(taken) == _TAKEN_AT_ONCE)

    async def close(self, services: Services) -> None:
        """Stop all workers and give their leases back."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self._drop(services, list(self.served.values()), lost=False)

    def _bound(self, services: Services) -> asyncio.Semaphore:
        if self._database is None:
            self._database = asyncio.Semaphore(max(2, services.settings.database.pool_size // 2))
        return self._database

    async def _renew(self, services: Services, ttl: timedelta) -> None:
        held = [one.fence for one in self.served.values()]
        if not held:
            return
        sent = monotonic()
        renewed, lost = await services.database.run(
            lambda conn: callback_leases.renew(conn, self.holder, held, ttl)
        )
        for subscription_id in renewed:
            self.served[subscription_id].worker.trusted_until = sent + ttl.total_seconds()
        await self._drop(services, [self.served[one] for one in lost], lost=True)

    async def _drop(self, services: Services, served: list[Served], *, lost: bool) -> None:
        await asyncio.gather(*(one.stop() for one in served))
        for one in served:
            del self.served[one.fence.subscription_id]
        if served and not lost:

            async def release(conn: Connection) -> None:
                for one in sorted(served, key=lambda each: each.fence.subscription_id):
                    await callback_leases.release(conn, one.fence)

            with suppress(ServiceError):
                await services.database.run(release)

    async def _wake_due(self, services: Services) -> None:
        if not self.served:
            return
        due = await services.database.run(lambda conn: callback_leases.list_due(conn, self.holder))
        for one in due:
            served = self.served.get(one.subscription_id)
            if served is not None:
                if one.live:
                    served.live_due.set()
                if one.apart:
                    served.repair_due.set()

    async def _watch(self, services: Services) -> None:
        """Look at the end of the feed often, and wake the workers when it has moved."""
        last, moved_at = None, monotonic()
        while True:
            try:
                newest = await services.database.run(feed.latest)
                if newest != last:
                    last, moved_at = newest, monotonic()
                    for one in self.served.values():
                        one.something_new.set()
                busy = monotonic() - moved_at < _BUSY_FOR_SECONDS
            except ServiceError:
                busy = False
            await asyncio.sleep(_POLL_SECONDS if busy else _IDLE_POLL_SECONDS)
