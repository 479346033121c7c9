"""Wake-ups: who waits for work or for word of an attempt is woken soon after the commit.

No command's transaction sends NOTIFY, which would make every commit queue behind one lock. After
its commits an instance wakes its own waiters at once and sends one notification per few
milliseconds from a connection of its own. All of it is a courtesy: waiters also look again every
second, so a lost notification, or a pooler that swallows LISTEN, costs a second and no work.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID, uuid4

import asyncpg
import structlog

from app.settings import DatabaseSettings

_CHANNEL = "execution_plane"
_GATHER_SECONDS = 0.005
_MAX_PAYLOAD_BYTES = 7000
_MAX_OUTGOING = 10_000
_RETRY_SECONDS = 1.0
W = TypeVar("W")
_LOG = structlog.get_logger(__name__)


FEED = "feed"
"""The topic of whatever becomes an event."""


def attempt(attempt_id: UUID) -> str:
    """The topic of whatever happens to one attempt."""
    return f"attempt:{attempt_id}"


class Signals:
    """Topics that coroutines of this instance wait for, fed by its own commits and by others'."""

    def __init__(self, settings: DatabaseSettings) -> None:
        """Nothing is connected before `start`."""
        self._settings = settings
        self._waiters: dict[str, list[asyncio.Future[None]]] = defaultdict(list)
        self._idle: dict[str, list[_Idle]] = defaultdict(list)
        self._outgoing: list[tuple[str, str | None]] = []
        self._pending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._origin = uuid4().hex
        self._newest: dict[Hashable, object] = {}
        self.draining = False

    async def wait(self, topic: str, seconds: float) -> bool:
        """Wait until the topic is woken or the time is over; True if it was woken."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return await _wait_in(self._waiters, topic, waiter, waiter, seconds)

    async def wait_for_work(
        self, runner_kind: str, takes: Callable[[UUID], bool], seconds: float
    ) -> bool:
        """Wait until an attempt of a class that one `takes` became claimable; True if one did.

        The longest waiting one that can take it is woken, and nobody else.
        """
        waiter = _Idle(asyncio.get_running_loop().create_future(), takes)
        return await _wait_in(self._idle, runner_kind, waiter, waiter.woken, seconds)

    def wake(self, topic: str) -> None:
        """Wake all waiters of a topic, here at once and elsewhere soon after."""
        self._wake_here(topic)
        self._send(topic, None)

    def wake_for_work(self, runner_kind: str, class_id: UUID) -> None:
        """Wake one waiter that can take an attempt of this class, here or, failing that, elsewhere.

        Wakers elsewhere are told in any case when nobody here could take it.
        """
        if not self._wake_idle(runner_kind, class_id):
            self._send(runner_kind, str(class_id))

    def _send(self, topic: str, class_id: str | None) -> None:
        if self._task is not None and len(self._outgoing) < _MAX_OUTGOING:
            self._outgoing.append((topic, class_id))
            self._pending.set()

    def _wake_here(self, topic: str) -> None:
        for waiter in self._waiters.get(topic, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _wake_idle_ones(self, runner_kind: str, class_id: UUID, most: int) -> None:
        while most > 0 and self._wake_idle(runner_kind, class_id):
            most -= 1

    def _wake_idle(self, runner_kind: str, class_id: UUID) -> bool:
        for waiter in self._idle.get(runner_kind, ()):
            if not waiter.woken.done() and waiter.takes(class_id):
                waiter.woken.set_result(None)
                return True
        return False

    @contextmanager
    def newest(self, key: Hashable) -> Iterator[Callable[[], bool]]:
        """For as long as the block lasts: a question whether this is still the newest of its key.

        Of two requests here that ask for the same thing, the older one can then make way.
        """
        mine = self._newest[key] = object()
        try:
            yield lambda: self._newest.get(key) is mine
        finally:
            if self._newest.get(key) is mine:
                del self._newest[key]

    def drain(self) -> None:
        """Let nobody wait here any more: whoever does is woken and should answer at once."""
        self.draining = True
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        for idle in self._idle.values():
            for one in idle:
                if not one.woken.done():
                    one.woken.set_result(None)

    async def start(self) -> None:
        """Begin to listen and to send; both go on trying while the database is away."""
        self._task = asyncio.create_task(self._run(), name="signals")

    async def stop(self) -> None:
        """End listening and sending."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                await self._session()
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
                _LOG.debug("signals.reconnecting", error=type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _session(self) -> None:
        """One connection: listen on it, and send what has gathered every few milliseconds."""
        settings = self._settings
        dsn = (settings.direct_url or settings.url).get_secret_value()
        connection = await asyncpg.connect(
            dsn,
            timeout=settings.connect_timeout_seconds,
            command_timeout=settings.statement_timeout_seconds,
            statement_cache_size=settings.statement_cache_size,
        )
        try:
            await connection.add_listener(_CHANNEL, self._heard)
            while True:
                await asyncio.wait_for(self._pending.wait(), timeout=None)
                await asyncio.sleep(_GATHER_SECONDS)
                self._pending.clear()
                outgoing, self._outgoing = self._outgoing, []
                for payload in _payloads(self._origin, outgoing):
                    await connection.execute("SELECT pg_notify($1, $2)", _CHANNEL, payload)
        finally:
            connection.terminate()

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        if self._origin in str(payload):
            return
        with suppress(ValueError, TypeError, KeyError):
            for topic, class_id, times in json.loads(str(payload))["wake"]:
                if class_id is None:
                    self._wake_here(str(topic))
                else:
                    self._wake_idle_ones(str(topic), UUID(class_id), int(times))


@dataclass(frozen=True, slots=True, eq=False)
class _Idle:
    """A claim that waits for work."""

    woken: asyncio.Future[None]
    takes: Callable[[UUID], bool]


async def _wait_in(
    waiting: dict[str, list[W]], topic: str, entry: W, woken: asyncio.Future[None], seconds: float
) -> bool:
    """Wait as one entry of a list, oldest first; the list goes with its last entry."""
    waiting[topic].append(entry)
    try:
        async with asyncio.timeout(seconds):
            await woken
    except TimeoutError:
        return False
    finally:
        waiting[topic].remove(entry)
        if not waiting[topic]:
            del waiting[topic]
    return True


def _payloads(origin: str, wakes: Iterable[tuple[str, str | None]]) -> Iterable[str]:
    """Texts of at most what NOTIFY carries; the same topic once, work as often as it was made."""
    part: list[tuple[str, str | None, int]] = []
    size = 0
    for (topic, class_id), times in Counter(wakes).items():
        size += len(topic) + 60
        part.append((topic, class_id, times))
        if size > _MAX_PAYLOAD_BYTES:
            yield json.dumps({"from": origin, "wake": part})
            part, size = [], 0
    if part:
        yield json.dumps({"from": origin, "wake": part})
