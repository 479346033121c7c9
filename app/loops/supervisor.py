"""Runs the loops: when, how often, with back-off, logs and metrics; one task each.

No loop waits for another: each has its own task, starts at a moment of its own and is broken off
when a pass takes too long, or when this process may not act as leader any more. A failing pass is
logged, counted and tried again later, ever more slowly. A loop whose task ends otherwise is a bug,
and `wait_broken` tells the process so that it can end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from time import monotonic

import structlog

from app.domain.errors import LeadershipLost, ServiceError, SweepTooSlow
from app.domain.sent import Deliver
from app.loops.abort_uploads import AbortUploads
from app.loops.deliver_callbacks import DeliverCallbacks
from app.loops.drop_partitions import DropPartitions
from app.loops.end_due import EndDue
from app.loops.fire_schedules import FireSchedules
from app.loops.forget_classes import ForgetClasses
from app.loops.forget_deliveries import ForgetDeliveries
from app.loops.forget_messages import ForgetMessages
from app.loops.forget_old import ForgetOld
from app.loops.forget_schedules import ForgetSchedules
from app.loops.keep_keys import KeepKeys
from app.loops.leader import Leader
from app.loops.loop import Closing, Loop, Result
from app.loops.make_partitions import MakePartitions
from app.loops.mark_bucket import MarkBucket
from app.loops.merge_logs import MergeLogs
from app.loops.remove_expired import RemoveExpired
from app.loops.remove_orphans import RemoveOrphans
from app.loops.reports import Reports
from app.loops.send_outbox import SendOutbox
from app.loops.tick import Tick
from app.services import Services

_LOG = structlog.get_logger(__name__)
_LONGEST_PAUSE_SECONDS = 30.0
_LONGEST_PASS_SECONDS = 60.0
_LONGEST_STAGGER_SECONDS = 1.0
_LOOK_SECONDS = 0.2
_REPORT_SECONDS = 1.0
_STOP_SECONDS = 3.0
_HAND_OVER_SECONDS = 0.3


def loops_of(role: str, deliver: Deliver) -> list[Loop]:
    """The loops that a process of this role runs.

    `deliver` hands messages to the handlers of this process, where no topic is configured.
    """
    ticking: list[Loop] = [Tick()] if role in {"api", "all"} else []
    sweeping: list[Loop] = [
        EndDue(),
        KeepKeys(),
        FireSchedules(),
        SendOutbox(deliver),
        MakePartitions(),
        ForgetClasses(),
        ForgetMessages(),
        ForgetSchedules(),
        MarkBucket(),
        MergeLogs(),
        *_retention(),
        DeliverCallbacks(),
        ForgetDeliveries(),
    ]
    return ticking + (sweeping if role in {"scheduler", "all"} else [])


def _retention() -> list[Loop]:
    """The loops that remove what is kept no longer."""
    return [DropPartitions(), RemoveExpired(), RemoveOrphans(), AbortUploads(), ForgetOld()]


class Supervisor:
    """All loops of one process."""

    def __init__(self, services: Services, loops: Sequence[Loop]) -> None:
        """Nothing runs before `start`."""
        self._services = services
        self._loops = loops
        self._leadership = services.leadership
        self.leader = Leader(services)
        self._reports = Reports([loop for loop in loops if loop.leader_only])
        self._leading: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._resigning = asyncio.Event()

    def start(self) -> None:
        """Start one task a loop, and the candidacy if any loop needs a leader."""
        for loop in self._loops:
            tasks = self._leading if loop.leader_only else self._tasks
            tasks.append(asyncio.create_task(self._keep(loop), name=loop.name))
        if self._leading:
            self._leading.append(asyncio.create_task(self._lead(), name="leader"))
            self._leading.append(asyncio.create_task(self._report(), name="reports"))

    async def hand_over(self) -> None:
        """Stop leading at once, so that another instance goes on; the other loops run on."""
        self._resigning.set()
        await _end(self._leading, _HAND_OVER_SECONDS)
        await self.leader.resign()

    async def stop(self) -> None:
        """Hand the leadership over, let running passes end, stop everything."""
        await self.hand_over()
        self._stopping.set()
        await _end(self._tasks, _STOP_SECONDS)
        for loop in self._loops:
            if isinstance(loop, Closing):
                await loop.close(self._services)

    async def wait_broken(self) -> None:
        """Return when a loop has ended although nobody asked it to."""
        tasks = [*self._tasks, *self._leading]
        if not tasks:
            await self._stopping.wait()
            return
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _lead(self) -> None:
        """Renew well before the expiry; without the leadership, look often whether it is free."""
        settings = self._services.settings.scheduler
        known: int | None = None
        while not self._resigning.is_set():
            held = await self.leader.renew()
            term = self._leadership.term if held else None
            if term != known:
                _LOG.info("leader.changed", leads=held, term=term or known)
                self._services.metrics.leading.set(held)
            known = term
            every = settings.renew_seconds if held else settings.poll_seconds
            await _pause(self._resigning, every * random.uniform(0.8, 1.0))  # noqa: S311

    async def _report(self) -> None:
        while not self._resigning.is_set():
            if self._leadership.is_held():
                try:
                    await self._reports.tell(self._services)
                except ServiceError as error:
                    _LOG.warning("leader.not_reported", reason=error.reason())
            await _pause(self._resigning, _REPORT_SECONDS)

    async def _keep(self, loop: Loop) -> None:
        stopping = self._resigning if loop.leader_only else self._stopping
        failures, leads = 0, False
        while not stopping.is_set():
            if loop.leader_only and not self._leadership.is_held():
                failures, leads = 0, False
                await _pause(stopping, min(loop.interval_seconds, _LOOK_SECONDS))
                continue
            if loop.leader_only and not leads:
                leads = True
                await _pause(stopping, _stagger(loop))
                continue
            result = await self._try(loop)
            failures = failures + 1 if result is None else 0
            await _pause(stopping, _pause_after(loop, result, failures))

    async def _try(self, loop: Loop) -> Result | None:
        """One pass with all that is told of it; None if it failed."""
        metrics, begun = self._services.metrics, monotonic()
        reason = "error"
        try:
            result = await self._bounded(loop, begun)
        except LeadershipLost:
            metrics.loop_runs.labels(loop.name, LeadershipLost.reason()).inc()
            return Result(0)
        except ServiceError as error:
            reason = error.reason()
            _LOG.warning("loop.failed", loop=loop.name, reason=reason)
        except Exception as error:  # noqa: BLE001 - a bug in one pass must not end the others
            reason = type(error).__name__
            _LOG.exception("loop.failed", loop=loop.name)
        else:
            metrics.loop_runs.labels(loop.name, "ok").inc()
            metrics.loop_done.labels(loop.name).inc(result.done)
            metrics.loop_seconds.labels(loop.name).observe(monotonic() - begun)
            if loop.leader_only:
                self._reports.passed(loop.name, result, monotonic() - begun)
            return result
        metrics.loop_runs.labels(loop.name, reason).inc()
        if loop.leader_only:
            self._reports.failed(loop.name, reason)
        return None

    async def _bounded(self, loop: Loop, begun: float) -> Result:
        """The pass, broken off after its time or when the leadership is lost under it."""
        limit = begun + getattr(loop, "limit_seconds", _LONGEST_PASS_SECONDS)
        running = asyncio.ensure_future(loop.run_once(self._services))
        try:
            while True:
                left = limit - monotonic()
                done, _ = await asyncio.wait({running}, timeout=min(left, _LOOK_SECONDS))
                if done:
                    return running.result()
                if monotonic() >= limit:
                    raise SweepTooSlow
                if loop.leader_only and not self._leadership.is_held():
                    raise LeadershipLost
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait({running})


def _stagger(loop: Loop) -> float:
    """A moment of its own for the first pass of a term, so that not all begin at once."""
    return random.uniform(0, min(loop.interval_seconds, _LONGEST_STAGGER_SECONDS))  # noqa: S311


def _pause_after(loop: Loop, result: Result | None, failures: int) -> float:
    """Until the next pass: at once if there is more to do, ever longer after failures."""
    if result is not None and result.more:
        return 0
    longest = max(_LONGEST_PAUSE_SECONDS, loop.interval_seconds)
    pause: float = min(loop.interval_seconds * 2 ** min(failures, 16), longest)
    return pause * random.uniform(0.9, 1.0)  # noqa: S311


async def _pause(stopping: asyncio.Event, seconds: float) -> None:
    """Wait; an order to stop ends it."""
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return


async def _end(tasks: Sequence[asyncio.Task[None]], grace_seconds: float) -> None:
    """Let tasks that were asked to stop end; cancel those that do not."""
    if not tasks:
        return
    _, running = await asyncio.wait(tasks, timeout=grace_seconds)
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
