"""What a subscription's worker does beside what is new: parked attempts, and replays."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from app.callbacks.rounds import Refused, Round, Sending
from app.domain.callbacks import DeliveryKind, PauseReason, Result, Subscription
from app.domain.errors import FeedCursorExpired, FeedEpochChanged
from app.domain.feed import Cursor, FeedEvent
from app.handlers.callback_accounts import logged
from app.loops.callback_worker import Overtaken, Targets, Worker
from app.store import callback_leases, callback_parks, callback_work, feed
from app.store.callback_leases import Replay, State
from app.store.callback_log import Logged
from app.store.callback_parks import Parked, Step
from app.store.callback_work import Failure
from app.store.database import Connection

_LOG = structlog.get_logger(__name__)
_AT_ONCE = 4
_TIMELINE = 100
_MICROSECOND = timedelta(microseconds=1)


class Repair:
    """The other half of a worker; it shares its lease, its target and nothing else."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._services = worker.services
        self._fence = worker.fence
        self.targets = Targets(worker.services)

    async def run_once(self) -> bool:
        """One step of everything that is due; whether there is more. Raises Overtaken."""
        if not self._worker.may_go_on():
            raise Overtaken
        async with self._worker.database:
            state, due = await self._services.database.run(self._look)
        if state is None or state.paused:
            raise Overtaken
        more = bool(due)
        if due:
            await asyncio.gather(*(self._parked(state.subscription, one) for one in due))
        if state.replay is not None and state.replay.waits_seconds <= 0:
            more = await self._replay(state, state.replay) or more
        return more

    async def _look(self, conn: Connection) -> tuple[State | None, list[Parked]]:
        state = await callback_leases.load(conn, self._fence)
        return state, await callback_parks.due(conn, self._fence, _AT_ONCE)

    # --- parked ----------------------------------------------------------------------------------

    async def _parked(self, subscription: Subscription, parked: Parked) -> None:
        """Send what a parked attempt holds, up to the cursor or to the first refusal."""
        async with self._worker.database:
            events = await self._services.database.run(
                lambda conn: callback_parks.timeline(conn, self._fence, parked, _TIMELINE)
            )
        wanted = [event for event in events if takes(subscription, event)]
        done = await self._send(subscription, wanted)
        refused = done.refused.get(parked.attempt_id) or done.stopped
        log = logged(self._services, DeliveryKind.PARKED, done.sent)
        if done.interrupted:
            raise Overtaken
        if refused is None:
            passed = events
        else:
            passed = [one for one in events if one.event_number < refused.event.event_number]
        if passed or refused is None:
            parked = await self._step(parked, passed, len(done.accepted), log)
            log = []
        if refused is not None:
            await self._refuse(parked, refused, log)

    async def _step(
        self, parked: Parked, passed: list[FeedEvent], delivered: int, log: list[Logged]
    ) -> Parked:
        """Move it on behind these events; it as it is parked now, if it still is."""
        number, created = parked.event_number, parked.created_from
        if passed:
            number, created = passed[-1].event_number + 1, passed[-1].timestamp
        step = Step(number, created, delivered, gap_of(parked, passed))
        async with self._worker.database:
            await self._services.database.run(
                lambda conn: callback_parks.step_parked(conn, self._fence, parked, step, log)
            )
        return replace(parked, event_number=number, created_from=created, failures=0)

    async def _refuse(self, parked: Parked, refused: Refused, log: list[Logged]) -> None:
        wait = timedelta(seconds=self._worker.wait_after(parked.failures + 1, refused))
        answer = refused.answer
        failure = Failure(refused.event.id, answer.result, answer.status, answer.detail, wait)
        async with self._worker.database:
            await self._services.database.run(
                lambda conn: callback_parks.refuse_parked(conn, self._fence, parked, failure, log)
            )
        if answer.result == Result.GONE:
            await self._worker.pause(PauseReason.GONE)

    async def _send(self, subscription: Subscription, events: list[FeedEvent]) -> Round:
        target = await self.targets.of(subscription)
        settings = self._services.settings.callbacks.model_copy(update={"tries_before_parking": 1})
        return await Sending(target, settings, self._worker.may_go_on).run(events)

    # --- replays ---------------------------------------------------------------------------------

    async def _replay(self, state: State, replay: Replay) -> bool:
        """Send one page of a replay again; whether there is more."""
        subscription = state.subscription
        try:
            async with self._worker.database:
                page, parked = await self._services.database.run(
                    lambda conn: self._replay_page(conn, subscription, replay)
                )
        except (FeedCursorExpired, FeedEpochChanged) as error:
            _LOG.warning(
                "callback.replay_ended", subscription=subscription.name, cause=error.reason()
            )
            return await self._replayed(None, Round())
        events = [
            event
            for event in page.events
            if event.cursor <= replay.until
            and (replay.from_time is None or event.timestamp >= replay.from_time)
            and (replay.to_time is None or event.timestamp < replay.to_time)
            and event.attempt_id not in parked
        ]
        target = await self.targets.of(subscription)
        sending = Sending(target, self._services.settings.callbacks, self._worker.may_go_on)
        done = await sending.run(events)
        if done.interrupted:
            raise Overtaken
        if done.stopped is not None:
            return await self._replay_failed(replay, done, done.stopped)
        over = page.caught_up or page.next_cursor >= replay.until or _is_past(page, replay)
        return await self._replayed(None if over else page.next_cursor, done)

    async def _replay_page(
        self, conn: Connection, subscription: Subscription, replay: Replay
    ) -> tuple[feed.Page, set[object]]:
        page = await feed.read(
            conn,
            replay.cursor,
            500,
            types=subscription.event_types,
            operation_ids=subscription.operation_ids,
            job_types=subscription.job_types,
        )
        attempts = list({event.attempt_id for event in page.events})
        return page, set(await callback_work.parked_of(conn, self._fence, attempts))

    async def _replayed(self, to: Cursor | None, done: Round) -> bool:
        log = logged(self._services, DeliveryKind.REPLAY, done.sent)
        parks = [self._worker.park(one) for one in done.refused.values()]
        maximum = self._services.settings.callbacks.max_parked
        async with self._worker.database:
            moved = await self._services.database.run(
                lambda conn: callback_work.replayed(
                    conn, self._fence, to, len(done.accepted), parks, log, max_parked=maximum
                )
            )
        if not moved:
            raise Overtaken
        return to is not None

    async def _replay_failed(self, replay: Replay, done: Round, stopped: Refused) -> bool:
        log = logged(self._services, DeliveryKind.REPLAY, done.sent)
        wait = timedelta(seconds=self._worker.wait_after(replay.failures + 1, stopped))
        async with self._worker.database:
            await self._services.database.run(
                lambda conn: callback_work.replay_failed(conn, self._fence, wait, log)
            )
        return False


def takes(subscription: Subscription, event: FeedEvent) -> bool:
    """Whether a subscription wants an event, as the feed's own filters decide it."""
    return (
        (subscription.event_types is None or event.type in subscription.event_types)
        and (subscription.operation_ids is None or event.operation_id in subscription.operation_ids)
        and (subscription.job_types is None or event.job_type in subscription.job_types)
    )


def _is_past(page: feed.Page, replay: Replay) -> bool:
    """Whether nothing that comes after this page can be of the times asked for."""
    return replay.to_time is not None and page.next_cursor.created_from >= replay.to_time


def gap_of(parked: Parked, found: list[FeedEvent]) -> datetime | None:
    """Before which moment events of it are missing: removed by age before they were accepted."""
    if parked.asked or (found and found[0].event_number == parked.event_number):
        return None
    return found[0].timestamp if found else parked.created_from + _MICROSECOND
