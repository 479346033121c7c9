"""Claiming: who may take what, one try at a time. Waiting is the edge's business."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import orjson

from app import failpoints
from app.auth.lease_tokens import hash_of, token_of
from app.commands.ends import take_back
from app.domain.commands import ClaimLeases
from app.domain.errors import (
    RunnerNotFound,
    ServiceError,
    SessionReplaced,
    SessionUnknown,
    TokenKeyRetired,
)
from app.domain.ids import new_id
from app.domain.keys import KeyRetired, KeyRing
from app.domain.lifecycle import LeaseStatus, RunnerStatus
from app.domain.placement import Demands, Offer, satisfies
from app.settings import LeaseSettings
from app.store import claims, runners
from app.store.claims import Leased, LeaseTerms
from app.store.database import Connection
from app.store.ends import Rules

_MAX_LAPSED_CLAIMS = 5
_MAX_OFFERS = 1000
_UNREAD: tuple[int, dict[UUID, Demands]] = (-1, {})


@dataclass
class PlacementClasses:
    """This instance's copy of the interned classes, a version a kind.

    Only ever a cache: every look compares the version and reloads all of a kind, since a late
    commit hides below any id.
    """

    _of_kind: dict[str, tuple[int, dict[UUID, Demands]]] = field(default_factory=dict)
    _satisfied: dict[Offer, tuple[int, list[UUID]]] = field(default_factory=dict)

    def version(self, kind: str) -> int:
        """The version that the copy of this kind was read at; -1: never read."""
        return self._of_kind.get(kind, _UNREAD)[0]

    def satisfied_by(self, offer: Offer) -> list[UUID]:
        """The ids of all known classes that a runner with this offer may take."""
        version, known = self._of_kind.get(offer.runner_kind, _UNREAD)
        remembered = self._satisfied.get(offer)
        if remembered is not None and remembered[0] == version:
            return remembered[1]
        if len(self._satisfied) >= _MAX_OFFERS:
            self._satisfied.clear()
        satisfied = [one for one, demands in known.items() if satisfies(offer, demands)]
        self._satisfied[offer] = (version, satisfied)
        return satisfied

    def may_take(self, offer: Offer, class_id: UUID) -> bool:
        """Whether the runner may take attempts of this class; of one not known yet, it might."""
        known = self._of_kind.get(offer.runner_kind, _UNREAD)[1]
        return class_id not in known or satisfies(offer, known[class_id])

    async def reload(self, conn: Connection, kind: str) -> None:
        """Read all classes of this kind again."""
        version, rows = await claims.list_classes(conn, kind)
        self._of_kind[kind] = (
            version,
            {
                row.id: Demands(kind, row.job_type, row.zone, orjson.loads(row.labels))
                for row in rows
            },
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """One lease of a claim's answer. `token` is None for a lease that has ended since."""

    leased: Leased
    token: str | None


@dataclass(frozen=True, slots=True)
class Claimer:
    """What one claim works with."""

    keys: KeyRing
    classes: PlacementClasses
    leases: LeaseSettings
    rules: Rules


async def try_claim(
    conn: Connection, claimer: Claimer, command: ClaimLeases
) -> list[Claim] | ServiceError:
    """One try: the leases of this request, new or given before; empty if there is nothing.

    Looks without locks first, so that an idle fleet costs reads only. Two tries of one request, on
    two instances, end with the same leases.
    """
    session = await runners.find_session(conn, command.runner_id, command.session_id)
    if session is None:
        return RunnerNotFound()
    if session.session_id != command.session_id:
        return SessionReplaced(action="stop") if session.known else SessionUnknown()
    offer = offer_of(session)
    satisfied, look = await _look(conn, claimer.classes, offer, command)
    if not look.request_used and not look.available:
        return []
    if failpoints.ARMED:
        await failpoints.hit("claim.after_select")
    runner = await claims.lock_runner(conn, command.runner_id, command.session_id)
    if runner is None:
        return RunnerNotFound()
    if runner.session_id != command.session_id:
        return SessionReplaced(action="stop")
    given = await claims.list_of_request(
        conn, command.runner_id, command.session_id, command.request_id
    )
    if given:
        return await _replay(conn, claimer, given)
    if not _may_claim(runner):
        return []
    capacity = runner.capacity_total
    # What was seen may be locked by another claim just now: nothing is tried once more, since by
    # then that one has mostly committed and the next in line can be read.
    return await _lease(conn, claimer, command, satisfied, capacity) or await _lease(
        conn, claimer, command, satisfied, capacity
    )


def offer_of(session: runners.Session) -> Offer:
    """What the runner of this session has to offer."""
    return Offer(
        session.runner_kind,
        frozenset(session.capabilities),
        session.zone,
        frozenset(orjson.loads(session.labels).items()),
    )


async def _look(
    conn: Connection, classes: PlacementClasses, offer: Offer, command: ClaimLeases
) -> tuple[list[UUID], claims.Look]:
    """Look with the newest classes: a version that has moved on is read again first."""
    while True:
        version = classes.version(offer.runner_kind)  # others may read them again meanwhile
        satisfied = classes.satisfied_by(offer)
        look = await claims.look(
            conn,
            offer.runner_kind,
            command.runner_id,
            command.session_id,
            command.request_id,
            satisfied,
        )
        if look.class_version == version:
            return satisfied, look
        await classes.reload(conn, offer.runner_kind)


def _may_claim(runner: claims.LockedRunner) -> bool:
    """A draining or unhealthy runner gets nothing; its room is counted by the statement itself."""
    return (
        not runner.drained
        and runner.lapsed_claims < _MAX_LAPSED_CLAIMS
        and runner.status
        not in {RunnerStatus.DRAINING, RunnerStatus.UNHEALTHY, RunnerStatus.OFFLINE}
    )


async def _lease(
    conn: Connection,
    claimer: Claimer,
    command: ClaimLeases,
    satisfied: list[UUID],
    capacity: int,
) -> list[Claim]:
    lease_ids = [new_id() for _ in range(min(command.max_leases, max(capacity, 1)))]
    tokens = {lease_id: token_of(claimer.keys, lease_id) for lease_id in lease_ids}
    leased = await claims.lease(
        conn,
        satisfied,
        command.runner_id,
        command.session_id,
        command.request_id,
        capacity,
        LeaseTerms(
            lease_ids,
            [hash_of(token) for token in tokens.values()],
            claimer.keys.current,
            timedelta(seconds=claimer.leases.claim_grace_seconds),
            timedelta(seconds=claimer.leases.start_timeout_seconds),
        ),
    )
    return [Claim(one, tokens[one.lease.id]) for one in leased]


async def _replay(
    conn: Connection, claimer: Claimer, given: list[Leased]
) -> list[Claim] | ServiceError:
    """The same leases again: active ones with their tokens, ended ones by their status.

    When a token's key has left the settings, the unstarted leases of this request are given back
    and the runner is told to claim anew.
    """
    try:
        return [
            Claim(
                one,
                token_of(claimer.keys, one.lease.id, one.token_key_id)
                if one.lease.status is LeaseStatus.ACTIVE
                else None,
            )
            for one in given
        ]
    except KeyRetired:
        unstarted = [
            one.lease.id
            for one in given
            if one.lease.started_at is None and one.lease.status is LeaseStatus.ACTIVE
        ]
        await take_back(conn, claimer.rules, unstarted, "token-key-retired", backs_off=False)
        return TokenKeyRetired()
