"""The hot commands themselves over one database, without HTTP: what a database costs them.

Each is the service's own command in a transaction of its own, as the service pins and commits it.
Timed are its statements: from BEGIN's answer to COMMIT's sending.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, Protocol, Self, TypeVar
from uuid import uuid4

from app.commands import attempts, leases
from app.commands.attempts import CreateRequest
from app.commands.claims import Claim, Claimer, ClaimRequest, PlacementClasses, try_claims
from app.commands.ends import rules_of
from app.commands.leases import BeatRequest, CompleteRequest, Terms
from app.domain.commands import (
    ClaimLeases,
    CompleteLease,
    CreateAttempt,
    Heartbeat,
    StartLease,
)
from app.domain.keys import KeyRing
from app.domain.placement import Offer
from app.settings import DatabaseSettings, LeaseSettings
from app.store import runners
from app.store.database import Connection, Database
from tests.driver import new_attempt

T = TypeVar("T")
MANY_CLASSES = 10_000
RUNNERS = 100
CREATE, CLAIM, START, BEAT, COMPLETE = "create", "claim", "start", "heartbeat", "complete"
NAMES = (CREATE, CLAIM, START, BEAT, COMPLETE)


class Runs(Protocol):
    """What carries a command out."""

    async def run(
        self, command: Callable[[Connection], Awaitable[T]], *, pinned: bool = False
    ) -> T:
        """Run it and return its outcome."""


class Commands:
    """Some runners and their control plane; `times` keeps milliseconds by command."""

    def __init__(self, database: Runs) -> None:
        """Over this database, or over anything that runs a command as it does."""
        self.database = database
        self.times: dict[str, list[float]] = defaultdict(list)
        prefix = uuid4().hex[:10]
        self.runner_ids = [f"bench-{prefix}-{number}" for number in range(RUNNERS)]
        self.session_id = uuid4()
        self._claims = 0
        self.offer = Offer("ssh", frozenset({"ssh.command.run"}), None, frozenset())
        self._keys = KeyRing("k1", {"k1": b"a secret of a benchmark, long enough to be one"})
        terms = LeaseSettings()
        self._terms = Terms.of(terms)
        self._claimer = Claimer(self._keys, PlacementClasses(), terms, rules_of(terms))

    async def register(self) -> Self:
        """Make the runners known."""
        await self.database.run(self._register)
        return self

    async def _register(self, conn: Connection) -> None:
        profile = runners.Profile("ssh", "1.0.0", ["ssh.command.run"], None, "{}")
        for runner_id in self.runner_ids:
            await runners.add_once(conn, runner_id, self.session_id, profile)
            await runners.begin_session(conn, runner_id, self.session_id, profile, 1000)

    async def timed(self, name: str, command: Callable[[Connection], Awaitable[T]]) -> T:
        """Run and commit it."""

        async def work(conn: Connection) -> T:
            began = perf_counter()
            outcome = await command(conn)
            self.times[name].append((perf_counter() - began) * 1000)
            return outcome

        return await self.database.run(work, pinned=True)

    async def create(self, many: int = 1, **fields: Any) -> None:
        """So many attempts that the runner can take, in one batch."""
        texts = [new_attempt(**fields) for _ in range(many)]
        requests = [CreateRequest(CreateAttempt(**text), text) for text in texts]
        await self.timed(
            CREATE, lambda conn: attempts.create(conn, self._keys, requests, MANY_CLASSES)
        )

    async def claim(self, most: int = 1) -> list[Claim]:
        """At most so many leases."""
        self._claims += 1
        command = ClaimLeases(
            runner_id=self.runner_ids[self._claims % RUNNERS],
            session_id=self.session_id,
            request_id=uuid4(),
            max_leases=most,
        )
        request = ClaimRequest(command, self.offer)
        [outcome] = await self.timed(CLAIM, lambda conn: try_claims(conn, self._claimer, [request]))
        assert isinstance(outcome, list), outcome
        return outcome

    async def start(self, claimed: Sequence[Claim]) -> None:
        """Begin the work of these."""
        commands = [StartLease(**_proof(one)) for one in claimed]
        await self.timed(START, lambda conn: leases.start(conn, self._terms, commands))

    async def beat(self, claimed: Sequence[Claim], number: int = 1) -> None:
        """A heartbeat for each."""
        requests = [
            BeatRequest(
                Heartbeat(
                    **_proof(one),
                    session_id=self.session_id,
                    sequence=number,
                    progress_percent=min(100, number),
                )
            )
            for one in claimed
        ]
        await self.timed(BEAT, lambda conn: leases.heartbeat(conn, self._terms, requests))

    async def complete(self, claimed: Sequence[Claim]) -> None:
        """End these."""
        text = {"outcome": "succeeded", "result": {"exit_code": 0}}
        requests = [CompleteRequest(CompleteLease(**_proof(one), **text), text) for one in claimed]
        await self.timed(
            COMPLETE, lambda conn: leases.complete(conn, self._keys, self._terms, requests)
        )

    def medians(self) -> dict[str, float]:
        """Milliseconds of each command since the last time this was asked."""
        found = {name: statistics.median(times) for name, times in self.times.items()}
        self.times.clear()
        return found

    async def live(self, many: int = 1) -> None:
        """Whole lives: `many` created, claimed, started, beaten once and completed together."""
        await self.create(many)
        claimed = await self.claim(many)
        assert len(claimed) == many, "there is always something for this runner"
        await self.start(claimed)
        await self.beat(claimed)
        await self.complete(claimed)


def _proof(one: Claim) -> dict[str, Any]:
    return {"lease_id": one.leased.lease.id, "lease_token": one.token}


@asynccontextmanager
async def commands_over(dsn: str) -> AsyncIterator[Commands]:
    """The commands of a new runner, as a service would run them on this database."""
    database = Database(DatabaseSettings(url=dsn))
    try:
        yield await Commands(database).register()
    finally:
        await database.close()
