"""Claiming: who may take what, in one try. Waiting is the edge's business."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

import orjson

from app import failpoints
from app.auth.lease_tokens import hash_of, token_of
from app.commands.ends import take_back
from app.commands.floors import Floors
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
from app.store.claims import Asked, Leased, LeaseTerms, Look
from app.store.database import Connection
from app.store.ends import Rules

_MAX_LAPSED_CLAIMS = 5
_MAX_OFFERS = 1000
_MAX_SESSIONS = 20_000
_OFFER_SECONDS = 60
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


@dataclass
class Offers:
    """This instance's copy of what sessions of runners offer, which a session never changes.

    Read again after a minute: a runner that was deleted may register the same session anew.
    """

    _known: dict[tuple[str, UUID], tuple[float, Offer]] = field(default_factory=dict)

    def find(self, runner_id: str, session_id: UUID) -> Offer | None:
        """The offer of this session, if it was read before."""
        since, offer = self._known.get((runner_id, session_id), (0.0, None))
        return offer if time.monotonic() - since < _OFFER_SECONDS else None

    def note(self, runner_id: str, session_id: UUID, offer: Offer) -> Offer:
        """Keep the offer of this session, as it was read; bounded."""
        if len(self._known) >= _MAX_SESSIONS:
            self._known.clear()
        self._known[runner_id, session_id] = (time.monotonic(), offer)
        return offer


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
    floors: Floors = field(default_factory=Floors)


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A claim of a runner whose offer is known; it never changes within a session."""

    command: ClaimLeases
    offer: Offer


Outcome = list[Claim] | ServiceError
_ALONE = 2
"""Of the claims of a batch that got nothing, how many try once more by themselves."""


async def try_claims(
    conn: Connection, claimer: Claimer, requests: Sequence[ClaimRequest]
) -> list[Outcome]:
    """One try each: the leases of these requests, new or given before; empty if there is nothing.

    All with the same offer and at most one a runner; outcomes by position. Looks without locks
    first, so that an idle fleet costs reads only. Two tries of one request, on two instances, end
    with the same leases.
    """
    asked = [
        Asked(one.runner_id, one.session_id, one.request_id)
        for one in (request.command for request in requests)
    ]
    satisfied, looks = await _look(conn, claimer, requests[0].offer, asked)
    outcomes: list[Outcome] = [_refused(*pair) or [] for pair in zip(asked, looks, strict=True)]
    going = [
        position
        for position, look in enumerate(looks)
        if outcomes[position] == [] and (look.request_used or look.available)
    ]
    if not going:
        return outcomes
    if failpoints.ARMED:
        await failpoints.hit("claim.after_select")
    locked = await claims.lock_runners(conn, [asked[position] for position in going])
    given = await claims.list_of_requests(conn, [asked[position] for position in going])
    open_: dict[int, Asked] = {}
    for position, leases in zip(going, given, strict=True):
        runner = locked.get(asked[position].runner_id)
        if runner is None:
            outcomes[position] = RunnerNotFound()
        elif runner.session_id != asked[position].session_id:
            outcomes[position] = SessionReplaced(action="stop")
        elif leases:
            outcomes[position] = await _replay(conn, claimer, leases)
        elif _may_claim(runner):
            wanted = min(requests[position].command.max_leases, max(runner.capacity_total, 1))
            open_[position] = replace(
                asked[position], wanted=wanted, capacity=runner.capacity_total
            )
    for position, claimed in (await _lease_all(conn, claimer, satisfied, open_)).items():
        outcomes[position] = claimed
    return outcomes


def _refused(asked: Asked, look: Look) -> ServiceError | None:
    if look.runner_session is None:
        return RunnerNotFound()
    if look.runner_session != asked.session_id:
        return SessionReplaced(action="stop") if look.session_known else SessionUnknown()
    return None


async def _lease_all(
    conn: Connection, claimer: Claimer, satisfied: list[UUID], open_: Mapping[int, Asked]
) -> dict[int, list[Claim]]:
    """New leases by position.

    What was seen may be locked by another claim just now, or back off from some runners only: so
    some that got nothing try once more by themselves.
    """
    claimed: dict[int, list[Claim]] = {}
    if open_:
        done = await _lease(conn, claimer, satisfied, list(open_.values()))
        claimed = dict(zip(open_, done, strict=True))
    for position in [one for one, leases in claimed.items() if not leases][:_ALONE]:
        [claimed[position]] = await _lease(conn, claimer, satisfied, [open_[position]])
    return claimed


def offer_of(session: runners.Session) -> Offer:
    """What the runner of this session has to offer."""
    return Offer(
        session.runner_kind,
        frozenset(session.capabilities),
        session.zone,
        frozenset(orjson.loads(session.labels).items()),
    )


async def _look(
    conn: Connection, claimer: Claimer, offer: Offer, asked: Sequence[Asked]
) -> tuple[list[UUID], list[Look]]:
    """Look with the newest classes: a version that has moved on is read again first.

    Where there is nothing above the floors, below them there may be.
    """
    classes = claimer.classes
    while True:
        version = classes.version(offer.runner_kind)  # others may read them again meanwhile
        satisfied = classes.satisfied_by(offer)
        floors = claimer.floors.of(satisfied)
        looks = await claims.look(conn, offer.runner_kind, asked, satisfied, floors)
        if looks[0].class_version != version:
            await classes.reload(conn, offer.runner_kind)
        elif floors and not looks[0].available:
            claimer.floors.forget()
        else:
            return satisfied, looks


def _may_claim(runner: claims.LockedRunner) -> bool:
    """A draining or unhealthy runner gets nothing; its room is counted by the statement itself."""
    return (
        not runner.drained
        and runner.lapsed_claims < _MAX_LAPSED_CLAIMS
        and runner.status
        not in {RunnerStatus.DRAINING, RunnerStatus.UNHEALTHY, RunnerStatus.OFFLINE}
    )


async def _lease(
    conn: Connection, claimer: Claimer, satisfied: list[UUID], asked: Sequence[Asked]
) -> list[list[Claim]]:
    lease_ids = [new_id() for _ in range(sum(one.wanted for one in asked))]
    tokens = {lease_id: token_of(claimer.keys, lease_id) for lease_id in lease_ids}
    terms = LeaseTerms(
        lease_ids,
        [hash_of(token) for token in tokens.values()],
        claimer.keys.current,
        timedelta(seconds=claimer.leases.claim_grace_seconds),
        timedelta(seconds=claimer.leases.start_timeout_seconds),
    )
    began = time.perf_counter()
    leased = await claims.lease(conn, satisfied, asked, terms, claimer.floors.of(satisfied))
    found = [one.attempt for leases in leased for one in leases if not one.continuation]
    await claimer.floors.note(conn, time.perf_counter() - began, found)
    return [[Claim(one, tokens[one.lease.id]) for one in leases] for leases in leased]


async def _replay(conn: Connection, claimer: Claimer, given: list[Leased]) -> Outcome:
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
