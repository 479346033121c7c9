"""Works on one subscription: what is new, and beside it what is parked or being replayed.

Read, send, record: nothing is sent within a transaction, and nothing is passed that was neither
accepted nor parked in the transaction that passes it. So a crash at any point repeats at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

import structlog

from app import failpoints
from app.callbacks.rounds import Refused, Round, Sending
from app.callbacks.sender import Target
from app.domain.callbacks import DeliveryKind, PauseReason, Subscription, backoff_seconds
from app.domain.errors import FeedCursorExpired, FeedEpochChanged
from app.domain.feed import Cursor, FeedEvent
from app.handlers.callback_accounts import logged
from app.services import Services
from app.store import callback_leases, callback_work, feed
from app.store.callback_leases import Fence, State
from app.store.callback_log import Logged
from app.store.callback_work import Failure, Park
from app.store.database import Connection
from app.store.feed import Page

_LOG = structlog.get_logger(__name__)
_SINGLES = 200
_MOST = 1000
_FEWEST = 8
_SLOW_SECONDS = 5.0
_KEEP_SECONDS = 5.0


class Overtaken(Exception):
    """The subscription is somebody else's by now, paused, or gone."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What to do next: read again at once, or after so many seconds, or when something happens."""

    seconds: float | None = None
    """None: until there is something new."""


@dataclass(frozen=True, slots=True)
class _Reading:
    state: State
    page: Page
    parked: frozenset[object]
    """Attempts of this page that wait apart."""


class Targets:
    """The target of a subscription as it is now; one half of a worker has one of its own."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._target: Target | None = None
        self._made_for: Subscription | None = None

    async def of(self, subscription: Subscription) -> Target:
        """Its target; another one when the subscription has changed."""
        if self._target is None or self._made_for != subscription:
            await self.close()
            self._target = self._services.callbacks.target(subscription)
            self._made_for = subscription
        return self._target

    async def close(self) -> None:
        """Close its connections."""
        target, self._target = self._target, None
        if target is not None:
            await target.close()


class Worker:
    """One subscription's worker, for as long as its lease is held."""

    def __init__(self, services: Services, fence: Fence, database: asyncio.Semaphore) -> None:
        """`database` bounds how many of an instance's workers use connections at once."""
        self.services = services
        self.fence = fence
        self.trusted_until = monotonic() + services.settings.callbacks.lease_seconds
        self.stopping = False
        self.database = database
        self.targets = Targets(services)
        self._after: Cursor | None = None
        self._kept_at = monotonic()
        self._limit = _MOST

    def may_go_on(self) -> bool:
        """Whether this worker may still send, by its own clock."""
        return not self.stopping and monotonic() < self.trusted_until

    # --- what is new ---------------------------------------------------------------------------

    async def live_once(self) -> Wait:
        """Send one page of what is new. Raises Overtaken."""
        reading = await self._read()
        if isinstance(reading, Wait):
            return reading
        state, page = reading.state, reading.page
        if not page.events:
            return await self._pass_empty(page)
        events = [event for event in page.events if event.attempt_id not in reading.parked]
        target = await self.targets.of(state.subscription)
        began = monotonic()
        done = await Sending(target, self.services.settings.callbacks, self.may_go_on).run(events)
        self._adapt(monotonic() - began)
        if failpoints.ARMED:
            await failpoints.hit("callback.before_cursor")
        wait = await self._record(reading, events, done)
        if failpoints.ARMED:
            await failpoints.hit("callback.after_cursor")
        return wait

    async def _read(self) -> _Reading | Wait:
        if not self.may_go_on():
            raise Overtaken
        try:
            async with self.database:
                reading = await self.services.database.run(self._read_page)
        except FeedCursorExpired:
            return await self.pause(PauseReason.CURSOR_EXPIRED)
        except FeedEpochChanged:
            return await self.pause(PauseReason.FEED_EPOCH_CHANGED)
        if reading is None:
            raise Overtaken
        return reading

    async def _read_page(self, conn: Connection) -> _Reading | Wait | None:
        state = await callback_leases.load(conn, self.fence)
        if state is None or state.paused:
            return None
        if state.waits_seconds > 0:
            return Wait(state.waits_seconds)
        subscription = state.subscription
        page = await feed.read(
            conn,
            self._after or state.cursor,
            self._page_size(subscription),
            types=subscription.event_types,
            operation_ids=subscription.operation_ids,
            job_types=subscription.job_types,
        )
        attempts = {event.attempt_id for event in page.events}
        parked = await callback_work.parked_of(conn, self.fence, list(attempts))
        return _Reading(state, page, frozenset(parked))

    def _page_size(self, subscription: Subscription) -> int:
        whole = _SINGLES if subscription.max_batch == 1 else _MOST
        return min(whole, self._limit)

    def _adapt(self, seconds: float) -> None:
        """A page takes seconds, not minutes: what is sent and not recorded is sent twice."""
        if seconds > _SLOW_SECONDS:
            self._limit = max(_FEWEST, self._limit // 2)
        else:
            self._limit = min(_MOST, self._limit * 2)

    async def _pass_empty(self, page: Page) -> Wait:
        """Nothing of it was wanted: the place is kept here, and written down now and then."""
        self._after = page.next_cursor
        if monotonic() - self._kept_at > _KEEP_SECONDS:
            await self._advance(page.next_cursor, 0, (), (), was_failing=False)
        return Wait() if page.caught_up else Wait(0)

    async def _record(self, reading: _Reading, events: Sequence[FeedEvent], done: Round) -> Wait:
        state, page = reading.state, reading.page
        log = logged(self.services, DeliveryKind.LIVE, done.sent)
        skipped = [
            Park(first)
            for first in {
                event.attempt_id: event
                for event in reversed(page.events)
                if event.attempt_id in reading.parked
            }.values()
        ]
        failures = state.failures + 1
        tries = self.services.settings.callbacks.tries_before_parking
        if done.stopped and done.is_one_unwanted(events) and failures >= tries:
            refused = Refused(done.stopped.event, done.stopped.answer, failures)
            done.refused, done.stopped = {refused.event.attempt_id: refused}, None
        if done.stopped is None and not done.interrupted:
            parks = [*skipped, *(self.park(one) for one in done.refused.values())]
            failing = state.failures > 0
            delivered = len(done.accepted)
            await self._advance(page.next_cursor, delivered, parks, log, was_failing=failing)
            self._after = page.next_cursor
            return Wait() if page.caught_up else Wait(0)
        return await self._record_part(reading, done, skipped)

    async def _record_part(self, reading: _Reading, done: Round, skipped: Sequence[Park]) -> Wait:
        """The round ended early: move on as far as everything was accepted, then wait."""
        log = logged(self.services, DeliveryKind.LIVE, done.sent)
        reached: Cursor | None = None
        for event in reading.page.events:
            if event.id not in done.accepted and event.attempt_id not in reading.parked:
                break
            reached = event.cursor
        if reached is not None:
            parks = [park for park in skipped if park.event.cursor <= reached]
            failing = reading.state.failures > 0
            await self._advance(reached, len(done.accepted), parks, log, was_failing=failing)
            self._after, log = reached, []
        if done.stopped is None:
            raise Overtaken
        failures = 1 if reached is not None else reading.state.failures + 1
        wait = self.wait_after(failures, done.stopped)
        reason = await self._fail(done.stopped, wait, log)
        if reason is not None:
            raise Overtaken
        return Wait(wait)

    async def _advance(
        self,
        to: Cursor,
        delivered: int,
        parks: Sequence[Park],
        log: Sequence[Logged],
        *,
        was_failing: bool,
    ) -> None:
        settings = self.services.settings.callbacks
        async with self.database:
            moved = await self.services.database.run(
                lambda conn: callback_work.advance(
                    conn,
                    self.fence,
                    to,
                    delivered,
                    parks,
                    log,
                    was_failing=was_failing,
                    max_parked=settings.max_parked,
                )
            )
        if not moved:
            raise Overtaken
        self._kept_at = monotonic()

    async def _fail(
        self, stopped: Refused, wait: float, log: Sequence[Logged]
    ) -> PauseReason | None:
        answer = stopped.answer
        failure = Failure(
            stopped.event.id, answer.result, answer.status, answer.detail, timedelta(seconds=wait)
        )
        async with self.database:
            reason = await self.services.database.run(
                lambda conn: callback_work.fail(conn, self.fence, failure, log)
            )
        if reason is not None:
            self._tell_paused(reason)
        return reason

    # --- what both have in common ----------------------------------------------------------------

    def park(self, refused: Refused) -> Park:
        """An attempt to be passed over because of this refusal."""
        wait = timedelta(seconds=self.wait_after(refused.tries, refused))
        return Park(
            refused.event, refused.tries, wait, refused.answer.result, refused.answer.status
        )

    def wait_after(self, failures: int, refused: Refused) -> float:
        """The pause after the n-th failure, or the longer one that the receiver asked for."""
        longest = self.services.settings.callbacks.max_backoff_seconds
        asked = refused.answer.retry_after_seconds or 0.0
        return max(backoff_seconds(failures, longest), asked)

    async def pause(self, reason: PauseReason) -> Wait:
        """Send nothing until somebody resumes it. Always raises Overtaken."""
        async with self.database:
            done = await self.services.database.run(
                lambda conn: callback_work.pause(conn, self.fence, reason)
            )
        if done:
            self._tell_paused(reason)
        raise Overtaken

    def _tell_paused(self, reason: PauseReason) -> None:
        self.services.metrics.callback_pauses.labels(reason.value).inc()
        subscription_id = str(self.fence.subscription_id)
        _LOG.error("callback.paused", subscription_id=subscription_id, cause=reason.value)
