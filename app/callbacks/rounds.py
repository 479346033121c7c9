"""Sends a page of events: an attempt's in order, different attempts' beside each other.

What tells a receiver that is down from an event that it does not want: whether it accepts others.
Until something was accepted only a few attempts are tried, chosen at random, so that a handful of
unwanted ones cannot pass for a receiver that is down. An event that keeps being refused while
others are accepted ends its attempt's part of the round; nothing of that attempt follows it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID

from app import failpoints
from app.callbacks.exchange import Answer
from app.callbacks.sender import Sent, Target
from app.domain.callbacks import ANSWERED, Result
from app.domain.feed import FeedEvent
from app.settings import CallbackSettings

PROBES = 4
_STOPPING = frozenset({Result.GONE, Result.BUSY, Result.NO_SECRET, Result.NO_IDENTITY})
"""What is true of every event: nothing else is tried in this round."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The first event of an attempt that was not accepted."""

    event: FeedEvent
    answer: Answer
    tries: int


@dataclass(slots=True)
class Round:
    """What became of a page."""

    accepted: set[UUID] = field(default_factory=set)
    """Ids of events."""
    refused: dict[UUID, Refused] = field(default_factory=dict)
    """By attempt."""
    sent: list[tuple[float, Sent]] = field(default_factory=list)
    """Every request, with the moment of its beginning on the monotonic clock."""
    stopped: Refused | None = None
    """Why the round ended early: it says that the receiver is down, and nothing of any event."""
    interrupted: bool = False
    """We were asked to stop."""

    def is_one_unwanted(self, events: Sequence[FeedEvent]) -> bool:
        """Whether there was only one attempt to try, and the receiver answered that it is not."""
        only = len({event.attempt_id for event in events}) == 1
        return bool(
            only
            and not self.accepted
            and self.stopped
            and self.stopped.answer.result in ANSWERED - {Result.GONE}
        )


class Sending:
    """One round at one target."""

    def __init__(
        self, target: Target, settings: CallbackSettings, may_go_on: Callable[[], bool]
    ) -> None:
        self._target = target
        self._settings = settings
        self._may_go_on = may_go_on
        self._in_row = 0
        self.round = Round()

    async def run(self, events: Sequence[FeedEvent]) -> Round:
        """Send them all, or as far as it goes."""
        size = self._target.max_batch
        if not events:
            return self.round
        if size == 1:
            await self._lanes(events)
            return self.round
        for start in range(0, len(events), size):
            batch = [
                event
                for event in events[start : start + size]
                if event.attempt_id not in self.round.refused
            ]
            if not batch:
                continue
            if self._is_over() or not await self._batch(batch):
                break
        return self.round

    async def _batch(self, batch: Sequence[FeedEvent]) -> bool:
        """Send a batch, and one by one what is refused as a whole. False: the round is over."""
        answer = await self._send(batch)
        if answer.accepted:
            return True
        if answer.result in _STOPPING or (len(batch) == 1 and not self.round.accepted):
            self._stop(batch[0], answer, 1)
        else:
            await self._lanes(batch)
        return not self._is_over()

    async def _lanes(self, events: Sequence[FeedEvent]) -> None:
        lanes: dict[UUID, list[FeedEvent]] = {}
        for event in events:
            lanes.setdefault(event.attempt_id, []).append(event)
        if not self.round.accepted and not await self._probe(list(lanes.values())):
            return
        waiting = [lane for lane in lanes.values() if lane]
        places = asyncio.Semaphore(self._settings.max_concurrency)
        async with asyncio.TaskGroup() as group:
            for lane in waiting:
                group.create_task(self._lane(lane, places))

    async def _probe(self, lanes: Sequence[list[FeedEvent]]) -> bool:
        """Try the first events of a few; what is accepted is taken out. False: nothing was."""
        chosen = random.sample(lanes, min(PROBES, len(lanes)))
        answers = await asyncio.gather(*(self._send(lane[:1]) for lane in chosen))
        for lane, answer in zip(chosen, answers, strict=True):
            if answer.accepted:
                del lane[0]
        if any(answer.accepted for answer in answers):
            return True
        worst = next((one for one in answers if one.result in _STOPPING), answers[0])
        self._stop(chosen[answers.index(worst)][0], worst, 1)
        return False

    async def _lane(self, lane: Sequence[FeedEvent], places: asyncio.Semaphore) -> None:
        async with places:
            for event in lane:
                if self._is_over() or not await self._insist(event):
                    return

    async def _insist(self, event: FeedEvent) -> bool:
        """Try an event a few times. False: it is not accepted, or the round is over."""
        settings = self._settings
        for number in range(1, settings.tries_before_parking + 1):
            answer = await self._send([event])
            if answer.accepted:
                return True
            refused = Refused(event, answer, number)
            if answer.result in _STOPPING or self._in_row > 2 * settings.max_concurrency + PROBES:
                self._stop(event, answer, number)
            if self._is_over():
                return False
            if number < settings.tries_before_parking:
                pause = settings.try_again_seconds * 2 ** (number - 1)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                if self._is_over():
                    return False
        self.round.refused[event.attempt_id] = refused
        return False

    async def _send(self, events: Sequence[FeedEvent]) -> Answer:
        began = monotonic()
        sent = await self._target.send(events)
        if failpoints.ARMED:
            await failpoints.hit("callback.after_post")
        self.round.sent.append((began, sent))
        if sent.answer.accepted:
            self.round.accepted.update(event.id for event in events)
            self._in_row = 0
        else:
            self._in_row += 1
        return sent.answer

    def _stop(self, event: FeedEvent, answer: Answer, tries: int) -> None:
        if self.round.stopped is None:
            self.round.stopped = Refused(event, answer, tries)

    def _is_over(self) -> bool:
        if not self._may_go_on():
            self.round.interrupted = True
        return self.round.stopped is not None or self.round.interrupted
