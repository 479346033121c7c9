"""The statements of whole lives, recorded while the service's own commands execute them.

A life is create, claim, start, one heartbeat and complete. Nothing is written down here a second
time: the commands of `app/commands` run on a connection that notes what passes over it, so what is
measured is what the service executes at this revision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from app.auth.lease_tokens import token_of
from app.commands import attempts, leases, runners
from app.commands.attempts import Created, CreateRequest
from app.commands.claims import Claim, Claimer, ClaimRequest, PlacementClasses, try_claims
from app.commands.ends import rules_of
from app.commands.leases import BeatRequest, CompleteRequest, Terms
from app.domain.commands import (
    ClaimLeases,
    CompleteLease,
    CreateAttempt,
    Heartbeat,
    RegisterRunner,
    StartLease,
)
from app.domain.keys import KeyRing
from app.domain.lifecycle import Outcome, RunnerKind
from app.domain.placement import Offer
from app.settings.groups import LeaseSettings, LimitSettings
from app.store import partitions
from tests.driver import new_attempt

KEYS = KeyRing("bench", {"bench": b"a secret of the benchmarks, long enough to be one"})
CAPABILITY = "ssh.command.run"


@dataclass(frozen=True)
class Statement:
    """One statement and the arguments that it was executed with."""

    sql: str
    arguments: tuple[Any, ...]


_NOW_AND_THEN = "-- floors.oldest_snapshot_age"


@dataclass(frozen=True)
class Step:
    """The statements of one command, which are one transaction."""

    name: str
    statements: tuple[Statement, ...]


class Recorded:
    """A connection that notes what is executed on it, but for what only a slow claim asks."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self.statements: list[Statement] = []

    def __getattr__(self, name: str) -> Any:
        """`fetch`, `fetchrow`, `fetchval` and `execute`, noted and passed on."""
        method = getattr(self._connection, name)

        async def noted(sql: str, *arguments: Any) -> Any:
            if _NOW_AND_THEN not in sql:
                self.statements.append(Statement(sql, arguments))
            return await method(sql, *arguments)

        return noted


@dataclass(frozen=True)
class Runner:
    """A registered runner in a zone of its own or shared with others."""

    zone: str
    id: str = field(default_factory=lambda: f"bench-{uuid4().hex[:10]}")
    session_id: UUID = field(default_factory=uuid4)

    @property
    def offer(self) -> Offer:
        """What it has to offer, as its session says."""
        return Offer("ssh", frozenset({CAPABILITY}), self.zone, frozenset())

    async def register(self, connection: asyncpg.Connection) -> Runner:
        """Make it known."""
        command = RegisterRunner(
            runner_id=self.id,
            session_id=self.session_id,
            runner_kind=RunnerKind.SSH,
            version="1.0.0",
            capabilities=[CAPABILITY],
            zone=self.zone,
            capacity_total=1000,
        )
        async with connection.transaction():
            await runners.register(connection, rules_of(LeaseSettings()), command)
        return self


async def prepare(connection: asyncpg.Connection) -> None:
    """What the service does at its start: the partitions of these days."""
    async with connection.transaction():
        await partitions.ensure(connection)


class Life:
    """Lives of one runner by the service's own commands, as steps that can be told again.

    `created` attempts in one batch, then claims of `claimed` leases each, and start, heartbeat and
    completion of a claim's leases together.
    """

    def __init__(
        self, connection: asyncpg.Connection, runner: Runner, created: int, claimed: int
    ) -> None:
        self._connection = connection
        self._runner = runner
        self._created, self._claimed = created, claimed
        self._settings = LeaseSettings()
        self._terms = Terms.of(self._settings)
        self._claimer = Claimer(KEYS, PlacementClasses(), self._settings, rules_of(self._settings))
        self.steps: list[Step] = []

    async def live(self) -> list[Step]:
        """Live twice; the steps of the second time, when nothing has to be made known any more."""
        await self._live()
        self.steps.clear()
        await self._live()
        return self.steps

    async def _live(self) -> None:
        await self._create()
        for _ in range(self._created // self._claimed):
            held = await self._claim()
            assert len(held) == self._claimed, "others took it: record on a database of your own"
            await self._work(held)

    async def _step(self, name: str, command: Any) -> Any:
        async with self._connection.transaction():
            noted = Recorded(self._connection)
            outcomes = await command(noted)
        self.steps.append(Step(name, tuple(noted.statements)))
        return outcomes

    async def _create(self) -> None:
        placed = {"zone": self._runner.zone}
        bodies = [new_attempt(placement=placed) for _ in range(self._created)]
        requests = [CreateRequest(CreateAttempt.model_validate(one), one) for one in bodies]
        limit = LimitSettings().max_placement_classes_per_kind
        outcomes = await self._step(
            "create", lambda conn: attempts.create(conn, KEYS, requests, limit)
        )
        assert all(isinstance(one, Created) for one in outcomes), outcomes

    async def _claim(self) -> list[Claim]:
        command = ClaimLeases(
            runner_id=self._runner.id,
            session_id=self._runner.session_id,
            request_id=uuid4(),
            max_leases=self._claimed,
        )
        request = ClaimRequest(command, self._runner.offer)
        [held] = await self._step("claim", lambda conn: try_claims(conn, self._claimer, [request]))
        return held

    async def _work(self, held: Sequence[Claim]) -> None:
        proofs = [
            {"lease_id": one.leased.lease.id, "lease_token": token_of(KEYS, one.leased.lease.id)}
            for one in held
        ]
        starts = [StartLease.model_validate(proof) for proof in proofs]
        await self._step("start", lambda conn: leases.start(conn, self._terms, starts))
        beat = {"session_id": self._runner.session_id, "sequence": 1, "progress_percent": 50}
        beats = [BeatRequest(Heartbeat.model_validate(proof | beat)) for proof in proofs]
        await self._step("heartbeat", lambda conn: leases.heartbeat(conn, self._terms, beats))
        word = {"outcome": Outcome.SUCCEEDED.value}
        words = [
            CompleteRequest(CompleteLease.model_validate(proof | word), word) for proof in proofs
        ]
        await self._step("complete", lambda conn: leases.complete(conn, KEYS, self._terms, words))


async def record(
    connection: asyncpg.Connection, runner: Runner, created: int = 1, claimed: int = 1
) -> list[Step]:
    """The steps of one life (or of a set of lives) of this runner."""
    return await Life(connection, runner, created, claimed).live()
