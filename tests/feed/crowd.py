"""Writers that are slow, overtake each other and roll back; readers that come and go."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from datetime import timedelta
from itertools import count
from typing import Any
from uuid import uuid4

import asyncpg
import httpx

from app.commands import attempts
from app.commands.attempts import CreateRequest
from app.commands.leases import hash_of
from app.domain.commands import CreateAttempt
from app.domain.ids import new_id
from app.domain.lifecycle import Phase
from app.services import Services
from app.store import leases
from app.store.leases import Beat, Key
from tests.driver import Control, Held, RunnerClient, new_attempt

HOUR = timedelta(hours=1)


def key_of(held: Held) -> Key:
    return Key(held.lease["id"], hash_of(held.token))


async def working(
    control: Control, runner: RunnerClient, many: int, *, start: bool = True
) -> list[Held]:
    """So many attempts that one runner holds, and works on."""
    await runner.register()
    status = {"session_id": runner.session_id, "sequence": 1, "status": "ready"}
    answer = await runner.call(
        "PUT", f"/v1/runners/{runner.id}/status", json={**status, "capacity_total": many}
    )
    assert answer.status_code == 200, answer.text
    for _ in range(many):
        await control.create()
    held: list[Held] = []
    while len(held) < many:
        for one in await runner.claim_all(max_leases=50):
            if start:
                await one.start()
            held.append(one)
    return held


class Writers:
    """Twenty by default: each takes its transaction's id early and the attempts' rows late."""

    def __init__(self, services: Services, dsn: str, held: list[Held]) -> None:
        self._services = services
        self._dsn = dsn
        self._held = held
        self._sequence = count(1)
        self.rolled_back = 0

    async def write(self, events: int, *, writers: int = 20) -> None:
        """Until so many more events are committed."""
        wanted = [events]

        def done(many: int) -> bool:
            wanted[0] -= many
            return wanted[0] <= 0

        await asyncio.gather(*(self._write(done) for _ in range(writers)))

    async def _write(self, done: Callable[[int], bool]) -> None:
        connection = await asyncpg.connect(self._dsn)
        try:
            while not done(0):
                transaction = connection.transaction()
                await transaction.start()
                await connection.execute("SELECT pg_current_xact_id()")
                await asyncio.sleep(random.expovariate(400))
                written = await random.choices((self._beat, self._create), (4, 1))[0](connection)
                await asyncio.sleep(random.choices((0, random.expovariate(100)), (3, 1))[0])
                if random.random() < 0.15:
                    await transaction.rollback()
                    self.rolled_back += 1
                else:
                    await transaction.commit()
                    done(written)
        finally:
            await connection.close()

    async def _beat(self, connection: asyncpg.Connection) -> int:
        """Changes of phase of a few attempts, which others change too."""
        beats = [
            Beat(
                key_of(one),
                new_id(),
                one.runner.session_id,
                next(self._sequence),
                random.choice(list(Phase)),
                None,
                None,
            )
            for one in random.sample(self._held, 4)
        ]
        beaten = await leases.heartbeat(connection, beats, HOUR, with_phase=True)
        return len(beaten) // 2

    async def _create(self, connection: asyncpg.Connection) -> int:
        """Several first events in one transaction."""
        requests = []
        for _ in range(random.randint(2, 12)):
            fields = new_attempt()
            command = CreateAttempt.model_validate({**fields, "requested_by_service": "crowd"})
            requests.append(CreateRequest(command, fields))
        await attempts.create(connection, self._services.keys, requests, 2000)
        return len(requests)


class Reader:
    """What one reader has got, in the order in which it got it."""

    def __init__(self, client: httpx.AsyncClient, cursor: str | None = None) -> None:
        self.client = client
        self.cursor = cursor
        self.got: list[dict[str, Any]] = []
        self.connections = 0

    @property
    def ids(self) -> list[str]:
        return [event["id"] for event in self.got]


class PageReader(Reader):
    """Reads pages by their cursor; now and then an answer is lost on the way, and asked again."""

    async def read(self, enough: Callable[[], bool]) -> None:
        while not enough():
            query = {"wait_seconds": 0.3, "page_size": random.choice((1, 3, 20, 100, 1000))}
            if self.cursor is not None:
                query["after"] = self.cursor
            self.connections += 1
            answer = await self.client.get("/v1/events", params=query)
            assert answer.status_code == 200, answer.text
            if random.random() < 0.1:
                continue
            self.got += answer.json()["items"]
            self.cursor = answer.json()["next_cursor"]


class StreamReader(Reader):
    """Follows the stream, breaks it off in the middle, and resumes it."""

    async def read(self, enough: Callable[[], bool]) -> None:
        while not enough():
            left = random.randint(1, 600)
            async with aclosing(follow(self.client, "/v1/events", self.cursor)) as frames:
                self.connections += 1
                async for identifier, data in frames:
                    self.cursor = identifier
                    if data is not None:
                        self.got.append(data)
                        left -= 1
                    if left <= 0 or enough():
                        break


async def follow(client: httpx.AsyncClient, path: str, last: str | None = None):
    """The frames of a stream: id and data, which is None where only the place moved on."""
    headers = {"Accept": "text/event-stream", **({} if last is None else {"Last-Event-ID": last})}
    async with client.stream("GET", path, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        identifier, data = None, None
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                identifier = line[4:]
            elif line.startswith("data: "):
                data = httpx.Response(200, text=line[6:]).json()
            elif not line and identifier is not None:
                yield identifier, data
                identifier, data = None, None


# --- readers that know less: their losses show that the run has what a feed must stand -----------

BELOW = "{own} < pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
OWN_XID = "xmin::text::bigint"
NAIVE = {
    "by time": "SELECT id, attempt_id, event_number, created_at AS a, id AS b "
    "FROM attempt_events WHERE (created_at, id) > ($1, $2) ORDER BY created_at, id LIMIT 1000",
    "by id": "SELECT id, attempt_id, event_number, 0 AS a, id AS b "
    "FROM attempt_events WHERE (0, id) > ($1, $2) AND id >= $2 ORDER BY id LIMIT 1000",
    "by plain xid": f"SELECT id, attempt_id, event_number, {OWN_XID} AS a, "
    f"attempt_id::text || event_number AS b FROM attempt_events WHERE {BELOW} "
    f"AND ({OWN_XID}, attempt_id::text || event_number) > ($1, $2) ORDER BY a, b LIMIT 1000",
    "without the attempt": "SELECT id, attempt_id, event_number, feed_xid AS a, "
    "event_number AS b FROM attempt_events WHERE feed_epoch = 1 AND feed_xid < "
    "pg_snapshot_xmin(pg_current_snapshot()) AND (feed_xid, event_number) > ($1, $2) "
    "AND feed_xid >= $1 ORDER BY feed_xid, event_number LIMIT 10",
}


class NaiveReader:
    """Follows the table by a simpler cursor."""

    def __init__(self, statement: str, first: tuple[Any, Any]) -> None:
        self._statement = statement.replace("{own}", OWN_XID)
        self._place = first
        self.got: list[tuple[str, str, int]] = []

    async def read(self, dsn: str, done: asyncio.Event) -> None:
        connection = await asyncpg.connect(dsn)
        try:
            while True:
                last = done.is_set()
                began = time.monotonic()
                rows = await connection.fetch(self._statement, *self._place)
                for row in rows:
                    got = (str(row["id"]), str(row["attempt_id"]), row["event_number"])
                    self.got.append(got)
                    self._place = (row["a"], row["b"])
                if last and not rows:
                    return
                # Some of these statements have no index to go by; they must not be all the load.
                took = time.monotonic() - began
                await asyncio.sleep(0 if last else 0.005 + 5 * took)
        finally:
            await connection.close()


def inversions(got: list[tuple[str, int]]) -> int:
    """How often an attempt's event came after a later one of it."""
    highest: Counter[str] = Counter()
    wrong = 0
    for attempt_id, number in got:
        wrong += number < highest[attempt_id]
        highest[attempt_id] = max(highest[attempt_id], number)
    return wrong


def unique_key() -> str:
    return uuid4().hex
