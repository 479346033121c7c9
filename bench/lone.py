"""A lone creation, one at a time: what gathering adds to its statements, and HTTP to both.

Three ways of the same creation take turns in a random order, so that what else the machine does,
and what the one before left, meets all: the command in a transaction of the pool (`direct`), the
same through the gatherer (`gathered`), and the whole request over HTTP at the service. The first
two run in this process.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from time import perf_counter

from pydantic import SecretStr

from app.commands import attempts
from app.commands.attempts import CreateRequest
from app.domain.commands import CreateAttempt
from app.settings.groups import DatabaseSettings, LimitSettings
from app.store.database import Database
from app.store.gathering import Gatherer
from bench.fleet import CREATE, Fleet
from bench.life import KEYS
from bench.wire import Times
from tests.driver import new_attempt


@dataclass(frozen=True)
class Lone:
    """p50 in milliseconds, and how many of each."""

    direct: float
    gathered: float
    http: float
    rounds: int


async def measure(fleet: Fleet, dsn: str, seconds: float) -> Lone:
    """Creations one after the other, for so long."""
    database = Database(DatabaseSettings(url=SecretStr(dsn)))
    limit = LimitSettings().max_placement_classes_per_kind
    gatherer = Gatherer(
        database,
        lambda conn, batch: attempts.create(conn, KEYS, batch, limit),
        lambda request: request.command.idempotency_key,
    )
    times: Times = defaultdict(list)
    control = await fleet.wire("control-plane", times)

    async def direct() -> None:
        request = _request()
        await database.run(lambda conn: attempts.create(conn, KEYS, [request], limit), pinned=True)

    async def gathered() -> None:
        await gatherer.run(_request())

    async def http() -> None:
        await control.call(CREATE, "POST", "/v1/attempts", new_attempt())

    ways = [("direct", direct), ("gathered", gathered), ("http", http)]
    found: dict[str, list[float]] = defaultdict(list)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        random.shuffle(ways)
        for name, way in ways:
            began = perf_counter()
            await way()
            found[name].append((perf_counter() - began) * 1000)
    await control.close()
    await database.close()
    middle = {name: statistics.median(times[len(times) // 10 :]) for name, times in found.items()}
    return Lone(**middle, rounds=len(found["direct"]))


def _request() -> CreateRequest:
    body = new_attempt()
    return CreateRequest(CreateAttempt.model_validate(body), body)


def show(lone: Lone) -> None:
    """The figures, line by line."""
    print(f"\n  {f'a lone creation, {lone.rounds} of each in turns':<52}{'p50 ms':>10}", flush=True)
    for name, value in (
        ("its statements in a transaction", lone.direct),
        ("the same through the gatherer", lone.gathered),
        ("over HTTP", lone.http),
    ):
        print(f"  {name:<52}{value:>10.2f}")
