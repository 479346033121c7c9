"""Runs the loops: when, how often, with back-off, logs and metrics; one task each.

A failing pass is logged, counted and tried again later, ever more slowly. A loop whose task ends
otherwise is a bug, and `wait_broken` tells the process so that it can end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import structlog

from app.domain.errors import ServiceError
from app.loops.deliver_callbacks import DeliverCallbacks
from app.loops.end_due import EndDue
from app.loops.forget_classes import ForgetClasses
from app.loops.forget_deliveries import ForgetDeliveries
from app.loops.forget_messages import ForgetMessages
from app.loops.keep_keys import KeepKeys
from app.loops.leader import RENEW_SECONDS, Leader
from app.loops.loop import Closing, Loop
from app.loops.make_partitions import MakePartitions
from app.loops.tick import Tick
from app.services import Services

_LOG = structlog.get_logger(__name__)
_LONGEST_PAUSE_SECONDS = 30.0
_STOP_SECONDS = 3.0


def loops_of(role: str) -> list[Loop]:
    """The loops that a process of this role runs."""
    ticking: list[Loop] = [Tick()] if role in {"api", "all"} else []
    sweeping: list[Loop] = (
        [EndDue(), KeepKeys(), MakePartitions(), ForgetClasses(), ForgetMessages()]
        if role in {"scheduler", "all"}
        else []
    )
    delivering: list[Loop] = (
        [DeliverCallbacks(), ForgetDeliveries()] if role in {"scheduler", "all"} else []
    )
    return ticking + sweeping + delivering


class Supervisor:
    """All loops of one process."""

    def __init__(self, services: Services, loops: Sequence[Loop]) -> None:
        """Nothing runs before `start`."""
        self._services = services
        self._loops = loops
        self.leader = Leader(services.database)
        self._tasks: list[asyncio.Task[None]] = []
        self._passed: set[str] = set()
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Start one task a loop, and the candidacy if any loop needs a leader."""
        if any(loop.leader_only for loop in self._loops):
            self._tasks.append(asyncio.create_task(self._lead(), name="leader"))
        for loop in self._loops:
            self._tasks.append(asyncio.create_task(self._keep(loop), name=loop.name))

    async def stop(self) -> None:
        """Let running passes end, stop everything, hand the leadership over."""
        self._stopping.set()
        if self._tasks:
            _, running = await asyncio.wait(self._tasks, timeout=_STOP_SECONDS)
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)
        for loop in self._loops:
            if isinstance(loop, Closing):
                await loop.close(self._services)
        await self.leader.resign()

    async def wait_broken(self) -> None:
        """Return when a loop has ended although nobody asked it to."""
        if not self._tasks:
            await self._stopping.wait()
            return
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _lead(self) -> None:
        while not self._stopping.is_set():
            if await self.leader.renew() and self._swept():
                try:
                    await self.leader.mark_swept()
                except ServiceError as error:
                    _LOG.warning("leader.not_marked", reason=error.reason())
            await self._pause(RENEW_SECONDS * random.uniform(0.8, 1.0))  # noqa: S311

    def _swept(self) -> bool:
        """Whether every frequent sweep has had a good pass since this was last true."""
        frequent = {
            loop.name
            for loop in self._loops
            if loop.leader_only and loop.interval_seconds <= RENEW_SECONDS
        }
        swept = self._passed >= frequent
        if swept:
            self._passed.clear()
        return swept

    async def _keep(self, loop: Loop) -> None:
        failures = 0
        while not self._stopping.is_set():
            if loop.leader_only and not self.leader.is_leader():
                await self._pause(min(loop.interval_seconds, 0.5))
                continue
            more = False
            try:
                result = await loop.run_once(self._services)
                more, failures = result.more, 0
                self._passed.add(loop.name)
                self._services.metrics.loop_runs.labels(loop.name, "ok").inc()
            except ServiceError as error:
                failures += 1
                self._services.metrics.loop_runs.labels(loop.name, error.reason()).inc()
                _LOG.warning("loop.failed", loop=loop.name, reason=error.reason())
            except Exception:  # noqa: BLE001 - a bug in one pass must not end the others
                failures += 1
                self._services.metrics.loop_runs.labels(loop.name, "error").inc()
                _LOG.exception("loop.failed", loop=loop.name)
            pause = (
                min(
                    loop.interval_seconds * 2**failures,
                    max(_LONGEST_PAUSE_SECONDS, loop.interval_seconds),
                )
                if failures
                else loop.interval_seconds
            )
            await self._pause(0 if more else pause * random.uniform(0.9, 1.0))  # noqa: S311

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return
