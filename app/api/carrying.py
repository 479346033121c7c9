"""Carrying out a pushed message: its effect and the note that it is done, once and in time.

A handler that is idempotent by its own key makes its own transactions. One that takes many messages
at once is given those that came together, in one transaction; every other has one of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import structlog
from opentelemetry import trace

from app import failpoints
from app.api.outcomes import SETTLE_SECONDS
from app.api.traces import form_of
from app.commands import messages as commands
from app.commands.messages import Done, End, Outcome, Pushed
from app.domain.commands import Command
from app.domain.errors import HandlerFailed, Overloaded, ServiceError
from app.handlers.registry import Context, Handler
from app.services import Services
from app.store import messages
from app.store.database import Connection
from app.store.dead_letters import Burial
from app.store.gathering import Gatherer
from app.store.messages import Message

_LOG = structlog.get_logger(__name__)
_MARK_AFTER_SECONDS = 1.0
_MARK_ABOVE_BYTES = 1024 * 1024
_SLOW_ONES = 1000

Also = Callable[[Connection], Awaitable[None]]
Bury = Callable[[ServiceError], Burial | None]


@dataclass(frozen=True, slots=True)
class Work:
    """A message whose handler is known and whose data is valid.

    `known`: what is noted of it has been looked at.
    """

    message: Message
    handler: Handler
    context: Context
    command: Command
    size: int
    known: bool = False


class Carrier:
    """Carries messages out, for one process."""

    def __init__(self, services: Services, process_id: UUID) -> None:
        """`process_id` tells this process's marks from those of others."""
        self._services = services
        self._process_id = process_id
        self._together: dict[str, Gatherer[Pushed[Work], Outcome]] = {}
        self._slow: OrderedDict[str, None] = OrderedDict()

    async def carry_out(
        self,
        work: Work,
        deadline: float,
        also: Also | None = None,
        bury: Bury = lambda _: None,
    ) -> Done:
        """Run the handler; its effect and the note that the message is done are one transaction.

        `also` is run in that transaction, before the handler; of a handler that is idempotent by
        its own key it is not run at all. `bury` makes the letter that such a transaction may leave
        instead. Raises StillRunning, what the handler raises of our errors, and HandlerFailed for
        anything else or when the time is over.
        """
        work = replace(work, context=replace(work.context, span=trace.get_current_span()))
        with ours_alone():
            outcome = await self._run(work, deadline, also, bury)
        if isinstance(outcome, ServiceError):
            raise outcome
        if failpoints.ARMED:
            await failpoints.hit("push.after_commit")
        return outcome

    async def _run(self, work: Work, deadline: float, also: Also | None, bury: Bury) -> Outcome:
        pushed = Pushed(work.message, work, bury, known=work.known)
        if work.handler.run_many is not None and also is None and self._may_join(work):
            return await self._gathered(pushed, deadline)
        async with asyncio.timeout_at(deadline), self._marked([work]):
            if work.handler.idempotent_by is not None:
                await work.handler.run(work.context, work.command)
                return End.DONE
            [outcome] = await self._services.database.run(
                lambda conn: commands.carry_out(
                    conn, self._process_id, [pushed], lambda conn, _: _alone(conn, work, also)
                )
            )
        self._slow.pop(work.message.digest, None)
        return outcome

    # --- together with others ---------------------------------------------------------------------

    def _may_join(self, work: Work) -> bool:
        """What killed its process, took too long or is large is not to hurt others."""
        is_slow = work.message.digest in self._slow
        return not work.known and not is_slow and work.size <= _MARK_ABOVE_BYTES

    async def _gathered(self, pushed: Pushed[Work], deadline: float) -> Outcome:
        """With others, after their common commit. One that takes too long has it alone next time.

        Whose fault that was nobody knows, so it is ours.
        """
        try:
            async with asyncio.timeout_at(deadline):
                return await self._gatherer_of(pushed.work.handler).run(pushed)
        except TimeoutError:
            self._slow[pushed.message.digest] = None
            while len(self._slow) > _SLOW_ONES:
                self._slow.popitem(last=False)
            raise Overloaded from None

    def _gatherer_of(self, handler: Handler) -> Gatherer[Pushed[Work], Outcome]:
        made = self._together.get(handler.name)
        if made is None:
            made = self._together[handler.name] = self._services.gathered.also(
                handler.name,
                self._carry_many,
                lambda pushed: pushed.message.digest,
                lambda pushed: pushed.message.digest,
            )
        return made

    async def _carry_many(self, conn: Connection, batch: Sequence[Pushed[Work]]) -> list[Outcome]:
        seconds = self._services.settings.push.handler_timeout_seconds
        works = [pushed.work for pushed in batch]
        try:
            async with asyncio.timeout(seconds), self._marked(works):
                return await commands.carry_out(conn, self._process_id, batch, _many)
        except TimeoutError:
            raise Overloaded from None

    # --- in case this process dies of it ----------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _marked(self, works: Sequence[Work]) -> AsyncIterator[None]:
        """Mark messages while they are worked on for long, in case this process dies of one."""
        marking: asyncio.Task[None] | None = None
        batch = [work.message for work in works]

        def begin() -> None:
            nonlocal marking
            marking = asyncio.create_task(
                self.tidy(lambda conn: messages.mark_working(conn, batch, self._process_id))
            )

        later = asyncio.get_running_loop().call_later(_MARK_AFTER_SECONDS, begin)
        if any(work.size > _MARK_ABOVE_BYTES for work in works):
            later.cancel()
            begin()
        try:
            if marking is not None:
                await asyncio.wait([marking])
            yield
        finally:
            later.cancel()
            if marking is not None:
                await asyncio.wait([marking])
                await self.tidy(lambda conn: messages.clear_working(conn, batch, self._process_id))

    async def tidy(self, command: Also) -> None:
        """Write a note that nothing rests on, or do without it."""
        with contextlib.suppress(ServiceError, TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._services.database.run(command)


@contextlib.contextmanager
def ours_alone() -> Iterator[None]:
    """Turn whatever a handler raises that is not an error of ours into HandlerFailed."""
    try:
        yield
    except ServiceError:
        raise
    except TimeoutError:
        _LOG.warning("push.handler_too_slow")
        raise HandlerFailed("The handler did not end within its time.") from None
    except Exception as error:  # noqa: BLE001 - told by its form, never by its words
        _LOG.error("push.handler_failed", **form_of(error))
        raise HandlerFailed from None


@contextlib.contextmanager
def _own_trouble(conn: Connection) -> Iterator[None]:
    """A handler's trouble with files or networks is its own, unless the connection was lost."""
    try:
        yield
    except OSError as error:
        if conn.is_closed():
            raise
        _LOG.error("push.handler_failed", **form_of(error))
        raise HandlerFailed from None


async def _alone(conn: Connection, work: Work, also: Also | None) -> list[None]:
    if also is not None:
        await also(conn)
    with _own_trouble(conn):
        await work.handler.run(replace(work.context, connection=conn), work.command)
    return [None]


async def _many(conn: Connection, works: Sequence[Work]) -> Sequence[ServiceError | None]:
    """All of one handler."""
    run_many = works[0].handler.run_many
    assert run_many is not None  # noqa: S101 - such are gathered
    contexts = [replace(work.context, connection=conn) for work in works]
    with _own_trouble(conn):
        return await run_many(contexts, [work.command for work in works])
