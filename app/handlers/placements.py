"""Answers why an attempt waits."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import orjson

from app.domain.errors import AttemptNotFound
from app.domain.explain import (
    Candidate,
    Reason,
    Standing,
    count,
    fleet_reason,
    nearest,
    standing,
)
from app.domain.lifecycle import Status, is_terminal
from app.domain.placement import Demands, Offer
from app.handlers.runners import offline_after
from app.services import Services
from app.store import holds, placements
from app.store.database import Connection
from app.store.holds import Hold
from app.store.placements import FleetRunner, Waiting

_NEAREST = 20


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an attempt waits, the truest reason first, and everything that is known about it."""

    waiting: Waiting
    reasons: list[tuple[Reason, str]]
    counts: dict[str, int]
    nearest: list[Standing]
    position: int | None
    hold: Hold | None


async def explain(services: Services, attempt_id: UUID) -> Explanation:
    """Read everything in one transaction and say it. Raises AttemptNotFound."""
    return await services.database.run(lambda conn: _explain(conn, services, attempt_id))


async def _explain(conn: Connection, services: Services, attempt_id: UUID) -> Explanation:
    waiting = await placements.find(conn, attempt_id)
    if waiting is None:
        raise AttemptNotFound
    settled = _settled(waiting)
    if settled is not None:
        return Explanation(waiting, [settled], {}, [], None, None)
    key = waiting.concurrency_key
    hold = await holds.find(conn, key) if key is not None else None
    standings = await _standings(conn, services, waiting)
    position = await placements.count_ahead(conn, waiting) if waiting.claimable else None
    return Explanation(
        waiting,
        [
            *_key_held(waiting, hold),
            *await _line(conn, services, waiting, hold),
            *_back_off(waiting),
            _fleet(standings),
        ],
        count(standings),
        nearest(standings, _NEAREST),
        None if position is None else position + 1,
        hold,
    )


def _settled(waiting: Waiting) -> tuple[Reason, str] | None:
    """Reasons that leave nothing to explain."""
    if is_terminal(Status(waiting.status)):
        return Reason.ENDED, f"It has ended as {waiting.status}."
    if waiting.lease_active:
        return Reason.RUNNING, "A runner holds it; nothing is waited for."
    if waiting.cancel_requested_at is not None:
        return Reason.CANCELLING, "It is to be cancelled and is not handed out any more."
    return None


def _key_held(waiting: Waiting, hold: Hold | None) -> list[tuple[Reason, str]]:
    if hold is None or hold.attempt_id == waiting.id:
        return []
    still = (
        f"attempt {hold.attempt_id} is {hold.attempt_status}"
        if hold.attempt_ended_at is None
        else f"attempt {hold.attempt_id} ended as {hold.attempt_status} without its runner's "
        "word, so its work may still be going on"
    )
    return [(Reason.KEY_HELD, f"Its concurrency key is held: {still}.")]


async def _line(
    conn: Connection, services: Services, waiting: Waiting, hold: Hold | None
) -> list[tuple[Reason, str]]:
    """Who goes first for the same key, and what that one waits for: the line is strict."""
    owns = hold is not None and hold.attempt_id == waiting.id
    if owns or waiting.first_in_line in {None, waiting.id}:
        return []
    first = await placements.find(conn, waiting.first_in_line)
    if first is None:
        return []
    standings = await _standings(conn, services, first)
    _, sentence = [*_key_held(first, hold), *_back_off(first), _fleet(standings)][0]
    who = f"Attempt {first.id} goes first for the same concurrency key"
    return [(Reason.BEHIND_IN_LINE, f"{who}, and waits itself: {sentence}")]


def _back_off(waiting: Waiting) -> list[tuple[Reason, str]]:
    if waiting.backing_off_seconds is None or waiting.backoff_runner_id is not None:
        return []
    seconds = round(waiting.backing_off_seconds)
    return [
        (
            Reason.BACKING_OFF,
            f"Several runners in a row took it and did not start it; it rests {seconds} s more.",
        )
    ]


def _fleet(standings: list[Standing]) -> tuple[Reason, str]:
    reason = fleet_reason(standings)
    sentences = {
        Reason.NO_RUNNER: "No runner of its kind is registered.",
        Reason.NO_MATCH: "No runner of its kind has what it demands.",
        Reason.NONE_AVAILABLE: "Every runner that could take it is busy, away or draining.",
        Reason.WAITING: "A runner can take it and will when it asks for work.",
    }
    return reason, sentences[reason]


async def _standings(conn: Connection, services: Services, waiting: Waiting) -> list[Standing]:
    runners = await placements.list_runners(
        conn, waiting.runner_kind, offline_after(services), services.terms.lease_time
    )
    placement = orjson.loads(waiting.placement)
    demands = Demands(
        waiting.runner_kind, waiting.job_type, placement.get("zone"), placement.get("labels", {})
    )
    return [
        standing(demands, _candidate(waiting.runner_kind, one), waiting.backoff_runner_id)
        for one in runners
    ]


def _candidate(kind: str, one: FleetRunner) -> Candidate:
    offer = Offer(
        kind,
        frozenset(one.capabilities),
        one.zone,
        frozenset(orjson.loads(one.labels).items()),
    )
    return Candidate(one.id, offer, one.status, one.drained, one.full)
