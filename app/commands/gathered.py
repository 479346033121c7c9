"""The commands of the hot path, each gathered with others of its kind into transactions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakSet

from app.commands import attempts, leases, logs, runners
from app.commands.attempts import Created, CreateRequest
from app.commands.claims import Claim, Claimer, ClaimRequest, PlacementClasses, try_claims
from app.commands.ends import rules_of
from app.commands.leases import BeatRequest, CompleteRequest, Terms, Word
from app.commands.logs import AppendRequest
from app.domain.commands import ReportStatus, StartLease
from app.domain.keys import KeyRing
from app.settings import Settings
from app.store import logs as log_rows
from app.store.database import Database
from app.store.gathering import Gatherer, Work
from app.store.leases import Beaten, Key, Started
from app.store.logs import Place, Recorded

C = TypeVar("C")
O = TypeVar("O")  # noqa: E741 - an outcome

Batched = Callable[[str, int], None]


@dataclass(frozen=True)
class Gathered:
    """One gatherer a command; those of one process share nothing but the pool."""

    create: Gatherer[CreateRequest, Created]
    claim: Gatherer[ClaimRequest, list[Claim]]
    start: Gatherer[StartLease, Started]
    heartbeat: Gatherer[BeatRequest, Beaten]
    complete: Gatherer[CompleteRequest, Word]
    report: Gatherer[ReportStatus, bool]
    look_at_log: Gatherer[tuple[Key, str], Place | None]
    append: Gatherer[AppendRequest, Recorded]
    database: Database
    batched: Batched
    others: WeakSet[Gatherer[Any, Any]] = field(default_factory=WeakSet)

    @classmethod
    def of(
        cls,
        settings: Settings,
        database: Database,
        keys: KeyRing,
        classes: PlacementClasses,
        batched: Batched = lambda _, __: None,
    ) -> Gathered:
        """The gatherers of a process; `batched` is told the command and the size of each batch."""
        claimer = Claimer(keys, classes, settings.leases, rules_of(settings.leases))
        terms, log_terms = Terms.of(settings.leases), log_rows.Terms.of(settings.leases)
        limit = settings.limits.max_placement_classes_per_kind
        return cls(
            create=Gatherer(
                database,
                lambda conn, batch: attempts.create(conn, keys, batch, limit),
                lambda request: request.command.idempotency_key,
                lambda request: request.command.requested_by_service,
                batched=lambda size: batched("attempt.create", size),
            ),
            claim=Gatherer(
                database,
                lambda conn, batch: try_claims(conn, claimer, batch),
                lambda request: request.command.runner_id,
                lambda request: str(request.command.session_id),
                group=lambda request: request.offer,
                batched=lambda size: batched("lease.claim", size),
            ),
            start=Gatherer(
                database,
                lambda conn, batch: leases.start(conn, terms, batch),
                lambda command: command.lease_id,
                lambda command: str(command.lease_id),
                batched=lambda size: batched("lease.start", size),
            ),
            heartbeat=Gatherer(
                database,
                lambda conn, batch: leases.heartbeat(conn, terms, batch),
                lambda request: request.command.lease_id,
                lambda request: str(request.command.session_id),
                batched=lambda size: batched("lease.heartbeat", size),
            ),
            complete=Gatherer(
                database,
                lambda conn, batch: leases.complete(conn, keys, terms, batch),
                lambda request: request.command.lease_id,
                lambda request: str(request.command.lease_id),
                batched=lambda size: batched("lease.complete", size),
            ),
            report=Gatherer(
                database,
                runners.report_status,
                lambda command: command.runner_id,
                lambda command: command.runner_id,
                batched=lambda size: batched("runner.report_status", size),
            ),
            look_at_log=Gatherer(
                database,
                lambda conn, batch: log_rows.look(conn, log_terms, batch),
                lambda asked: asked,
                batched=lambda size: batched("log.look", size),
            ),
            append=Gatherer(
                database,
                lambda conn, batch: logs.append(conn, log_terms, batch),
                lambda request: request.key.lease_id,
                lambda request: str(request.key.lease_id),
                # Those with an event lock attempts as well, and then no others' leases.
                group=lambda request: request.leak is not None,
                batched=lambda size: batched("log.append", size),
            ),
            database=database,
            batched=batched,
        )

    def also(
        self,
        name: str,
        work: Work[C, O],
        key: Callable[[C], Hashable],
        caller: Callable[[C], str] = lambda _: "",
        group: Callable[[C], Hashable] = lambda _: None,
    ) -> Gatherer[C, O]:
        """A gatherer of somebody's own, which is drained with the others."""
        made = Gatherer(
            self.database, work, key, caller, group, lambda size: self.batched(name, size)
        )
        self.others.add(made)
        return made

    async def drain(self) -> None:
        """Return when nothing is under way any more."""
        for gatherer in [*vars(self).values(), *self.others]:
            if isinstance(gatherer, Gatherer):
                await gatherer.drain()
