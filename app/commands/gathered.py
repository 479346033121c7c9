"""The commands of the hot path, each gathered with others of its kind into transactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.commands import attempts, leases
from app.commands.attempts import Created, CreateRequest
from app.commands.leases import BeatRequest, CompleteRequest, Terms, Word
from app.domain.commands import StartLease
from app.domain.keys import KeyRing
from app.settings import Settings
from app.store.database import Database
from app.store.gathering import Gatherer
from app.store.leases import Beaten, Started

Batched = Callable[[str, int], None]


@dataclass(frozen=True)
class Gathered:
    """One gatherer a command; those of one process share nothing but the pool."""

    create: Gatherer[CreateRequest, Created]
    start: Gatherer[StartLease, Started]
    heartbeat: Gatherer[BeatRequest, Beaten]
    complete: Gatherer[CompleteRequest, Word]

    @classmethod
    def of(
        cls, settings: Settings, database: Database, keys: KeyRing, batched: Batched
    ) -> Gathered:
        """The gatherers of a process; `batched` is told the command and the size of each batch."""
        terms = Terms.of(settings.leases)
        limit = settings.limits.max_placement_classes_per_kind
        return cls(
            create=Gatherer(
                database,
                lambda conn, batch: attempts.create(conn, keys, batch, limit),
                lambda request: request.command.idempotency_key,
                lambda request: request.command.requested_by_service,
                lambda size: batched("attempt.create", size),
            ),
            start=Gatherer(
                database,
                lambda conn, batch: leases.start(conn, terms, batch),
                lambda command: command.lease_id,
                lambda command: str(command.lease_id),
                lambda size: batched("lease.start", size),
            ),
            heartbeat=Gatherer(
                database,
                lambda conn, batch: leases.heartbeat(conn, terms, batch),
                lambda request: request.command.lease_id,
                lambda request: str(request.command.session_id),
                lambda size: batched("lease.heartbeat", size),
            ),
            complete=Gatherer(
                database,
                lambda conn, batch: leases.complete(conn, keys, terms, batch),
                lambda request: request.command.lease_id,
                lambda request: str(request.command.lease_id),
                lambda size: batched("lease.complete", size),
            ),
        )

    async def drain(self) -> None:
        """Return when nothing is under way any more."""
        for gatherer in (self.create, self.start, self.heartbeat, self.complete):
            await gatherer.drain()
