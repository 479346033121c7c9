"""Group commit: concurrent commands of one kind share a transaction, and none waits to be gathered.

A lone command goes at once. While batches of its kind are under way, further ones queue, and the
next batch takes what has come together by then: as many as are under way, unless that takes long.
Outcomes are given after the commit, by position. A batch holds at most one command a key; a second
one waits for the next.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from app.domain.errors import OutcomeUnknown, Overloaded, ServiceError
from app.store.database import Connection, Database

C = TypeVar("C")
O = TypeVar("O")  # noqa: E741 - an outcome

Work = Callable[[Connection, Sequence[C]], Awaitable[Sequence[O | ServiceError]]]

MOST = 64
"""Commands in one transaction."""
PARALLEL = 2
"""Batches of one kind under way at once, each on a connection of its own."""
ROOM = 2000
"""Commands of one kind that may wait; then 503."""
BESIDE = 16
"""Fewer wait for the batch under way, or for as many as there are in it."""
EVEN_SECONDS = 0.02
"""How long they wait for it at most."""
PATIENCE_SECONDS = 5.0
"""The longest wait for a batch; then 503."""
_SPOILT_SECONDS = 60.0
_SPOILERS = 1000


@dataclass(slots=True)
class _Entry(Generic[C, O]):
    command: C
    key: Hashable
    caller: str
    since: float
    outcome: asyncio.Future[O | ServiceError]


@dataclass(slots=True)
class _Spoilt:
    """When the rows of a caller made whole batches fail."""

    at: deque[float] = field(default_factory=lambda: deque(maxlen=2))


class Gatherer(Generic[C, O]):
    """Gathers the commands of one kind of this process.

    `work` carries out many of them in a transaction and gives outcomes by position; `key` is what
    only one command of a batch may name, `caller` who is to blame if its row spoils a batch, and
    `group` what all of a batch have in common; `batched` is told the size of every batch.
    """

    def __init__(
        self,
        database: Database,
        work: Work[C, O],
        key: Callable[[C], Hashable],
        caller: Callable[[C], str] = lambda _: "",
        group: Callable[[C], Hashable] = lambda _: None,
        batched: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Nothing runs before the first command."""
        self._database = database
        self._work = work
        self._key = key
        self._caller = caller
        self._group = group
        self._batched = batched
        self._waiting: deque[_Entry[C, O]] = deque()
        self._busy: set[Hashable] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._later: asyncio.TimerHandle | None = None
        self._spoilers: OrderedDict[str, _Spoilt] = OrderedDict()

    async def run(self, command: C) -> O | ServiceError:
        """Carry the command out; its outcome after the commit.

        Raises Overloaded when too many wait or this one waited too long, and what `Database.run`
        raises. A caller that gives up spoils nothing: what waits is dropped, what is under way is
        finished without it. One whose rows made two batches fail within a minute runs alone.
        """
        if len(self._waiting) >= ROOM:
            raise Overloaded
        future: asyncio.Future[O | ServiceError] = asyncio.get_running_loop().create_future()
        now = time.monotonic()
        entry = _Entry(command, self._key(command), self._caller(command), now, future)
        self._waiting.append(entry)
        self._begin()
        return await future

    async def drain(self, seconds: float = 10.0) -> None:
        """Return when nothing waits and nothing is under way; at the latest after that time."""
        deadline = time.monotonic() + seconds
        while self._tasks and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    def _begin(self, *, at_last: bool = False) -> None:
        """Begin as many batches as may go. A crumb beside a batch would cost as much as a batch."""
        while self._waiting and len(self._tasks) < PARALLEL:
            if self._tasks and not at_last and len(self._waiting) < self._worth_it():
                self._begin_later()
                return
            batch = self._take()
            if not batch:
                return
            if self._later is not None:
                self._later.cancel()
                self._later = None
            self._under_way += len(batch)
            self._busy.update(entry.key for entry in batch)
            task = asyncio.create_task(self._serve(batch))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _worth_it(self) -> int:
        """How many must wait for another batch to begin beside those under way."""
        return min(max(self._under_way, BESIDE), MOST)

    def _begin_later(self) -> None:
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(EVEN_SECONDS, self._at_last)

    def _at_last(self) -> None:
        self._later = None
        self._begin(at_last=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin()

    def _take(self) -> list[_Entry[C, O]]:
        """The next batch, in order of arrival; what may not go with it keeps its place."""
        batch: list[_Entry[C, O]] = []
        keys: set[Hashable] = set()
        left: deque[_Entry[C, O]] = deque()
        oldest = time.monotonic() - PATIENCE_SECONDS
        while self._waiting and len(batch) < MOST:
            entry = self._waiting.popleft()
            if entry.outcome.done():
                continue
            if entry.since < oldest:
                entry.outcome.set_exception(Overloaded())
            elif entry.key in keys or not self._may_join(entry, batch):
                left.append(entry)
            elif not self._runs_alone(entry.caller):
                batch.append(entry)
                keys.add(entry.key)
            elif batch:
                left.append(entry)
            else:
                batch.append(entry)
                break
        self._waiting.extendleft(reversed(left))
        return batch

    def _may_join(self, entry: _Entry[C, O], batch: list[_Entry[C, O]]) -> bool:
        if entry.key in self._busy:
            return False
        return not batch or self._group(entry.command) == self._group(batch[0].command)

    async def _serve(self, batch: list[_Entry[C, O]]) -> None:
        try:
            self._batched(len(batch))
            await self._carry_out(batch, whole=len(batch))
        finally:
            self._under_way -= len(batch)
            self._busy.difference_update(entry.key for entry in batch)
            for entry in batch:  # only if this task was broken off
                if not entry.outcome.done():
                    entry.outcome.set_exception(OutcomeUnknown())

    async def _carry_out(self, batch: list[_Entry[C, O]], whole: int) -> None:
        """One transaction; one that the server refuses is halved until the bad row is alone."""
        commands = [entry.command for entry in batch]
        try:
            outcomes = await self._database.run(
                lambda conn: self._work(conn, commands), pinned=True
            )
        except Exception as error:  # noqa: BLE001 - each caller is given it
            shared = isinstance(error, ServiceError) and not error.spoils_only_its_row()
            if len(batch) == 1 or shared or isinstance(error, OutcomeUnknown):
                self._fail(batch, error, whole)
                return
            middle = len(batch) // 2
            await self._carry_out(batch[:middle], whole)
            await self._carry_out(batch[middle:], whole)
            return
        for entry, outcome in zip(batch, outcomes, strict=True):
            if not entry.outcome.done():
                entry.outcome.set_result(outcome)

    def _fail(self, batch: list[_Entry[C, O]], error: Exception, whole: int) -> None:
        for entry in batch:
            if not entry.outcome.done():
                entry.outcome.set_exception(error)
        if len(batch) == 1 and whole > 1 and batch[0].caller:
            self._note_spoiler(batch[0].caller)

    def _note_spoiler(self, caller: str) -> None:
        spoilt = self._spoilers.setdefault(caller, _Spoilt())
        spoilt.at.append(time.monotonic())
        self._spoilers.move_to_end(caller)
        while len(self._spoilers) > _SPOILERS:
            self._spoilers.popitem(last=False)

    def _runs_alone(self, caller: str) -> bool:
        spoilt = self._spoilers.get(caller)
        if spoilt is None or len(spoilt.at) < 2:  # noqa: PLR2004 - the first may be an accident
            return False
        return time.monotonic() - spoilt.at[0] < _SPOILT_SECONDS
