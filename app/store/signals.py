"""Wake-ups: who waits for work or for word of an attempt is woken soon after the commit.

No command's transaction sends NOTIFY, which would make every commit queue behind one lock. After
its commits an instance wakes its own waiters at once and sends one notification per few
milliseconds from a connection of its own. All of it is a courtesy: waiters also look again every
second, so a lost notification, or a pooler that swallows LISTEN, costs a second and no work.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID, uuid4

import asyncpg
import structlog

from app.settings import DatabaseSettings

_CHANNEL = "execution_plane"
_GATHER_SECONDS = 0.005
_MAX_PAYLOAD_BYTES = 7000
_RETRY_SECONDS = 1.0
_LOG = structlog.get_logger(__name__)


def work(runner_kind: str) -> str:
    """The topic of claimable attempts of a kind."""
    return f"work:{runner_kind}"


def attempt(attempt_id: UUID) -> str:
    """The topic of whatever happens to one attempt."""
    return f"attempt:{attempt_id}"


class Signals:
    """Topics that coroutines of this instance wait for, fed by its own commits and by others'."""

    def __init__(self, settings: DatabaseSettings) -> None:
        """Nothing is connected before `start`."""
        self._settings = settings
        self._waiters: dict[str, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._outgoing: dict[str, int] = {}
        self._pending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._origin = uuid4().hex

    async def wait(self, topic: str, seconds: float) -> bool:
        """Wait until the topic is woken or the time is over; True if it was woken."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiters[topic]
        queue.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return False
        finally:
            with suppress(ValueError):
                queue.remove(waiter)
            if not queue:
                self._waiters.pop(topic, None)
        return True

    def wake(self, topic: str, count: int | None = None) -> None:
        """Wake `count` waiters of a topic (None: all), here at once and elsewhere soon after."""
        self._wake_here(topic, count)
        before = self._outgoing.get(topic, 0)
        self._outgoing[topic] = -1 if count is None or before < 0 else before + count
        self._pending.set()

    def _wake_here(self, topic: str, count: int | None) -> None:
        queue = self._waiters.get(topic)
        woken = 0
        while queue and (count is None or woken < count):
            waiter = queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                woken += 1

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
                outgoing, self._outgoing = self._outgoing, {}
                for payload in _payloads(self._origin, outgoing.items()):
                    await connection.execute("SELECT pg_notify($1, $2)", _CHANNEL, payload)
        finally:
            connection.terminate()

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        with suppress(ValueError, TypeError, KeyError):
            message = json.loads(str(payload))
            if message["from"] != self._origin:
                for topic, count in message["wake"]:
                    self._wake_here(str(topic), None if count < 0 else int(count))


def _payloads(origin: str, topics: Iterable[tuple[str, int]]) -> Iterable[str]:
    """Texts of at most what NOTIFY carries."""
    part: list[tuple[str, int]] = []
    size = 0
    for topic, count in topics:
        size += len(topic) + 16
        part.append((topic, count))
        if size > _MAX_PAYLOAD_BYTES:
            yield json.dumps({"from": origin, "wake": part})
            part, size = [], 0
    if part:
        yield json.dumps({"from": origin, "wake": part})
