"""Why an attempt waits: the first true reason, and how every runner of its kind stands to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.domain.placement import Demands, Offer, can_do


class Obstacle(StrEnum):
    """What keeps one runner from taking the attempt; the later ones are the nearer ones."""

    CAPABILITY = "capability"
    ZONE = "zone"
    LABELS = "labels"
    OFFLINE = "offline"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    BACKING_OFF = "backing_off"
    FULL = "full"
    NONE = "none"


class Reason(StrEnum):
    """Why an attempt is not being worked on, the truest one first."""

    ENDED = "ended"
    RUNNING = "held_by_a_runner"
    CANCELLING = "cancel_pending"
    KEY_HELD = "concurrency_key_held"
    BEHIND_IN_LINE = "behind_in_line_for_key"
    BACKING_OFF = "backing_off"
    NO_RUNNER = "no_runner_of_this_kind"
    NO_MATCH = "no_runner_matches"
    NONE_AVAILABLE = "no_matching_runner_is_available"
    WAITING = "waiting_for_a_runner_to_ask"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A runner of the attempt's kind."""

    runner_id: str
    offer: Offer
    status: str
    drained: bool
    full: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """How one runner stands to the attempt."""

    runner_id: str
    obstacle: Obstacle
    sentence: str


def standing(demands: Demands, candidate: Candidate, backoff_runner: str | None) -> Standing:
    """The first thing that keeps this runner from taking the attempt."""
    offer = candidate.offer
    missing = [
        f"{name}={value}"
        for name, value in demands.labels.items()
        if (name, value) not in offer.labels
    ]
    checks = (
        (
            not can_do(offer.capabilities, demands.job_type),
            Obstacle.CAPABILITY,
            f"cannot do {demands.job_type}",
        ),
        (
            demands.zone not in {None, offer.zone},
            Obstacle.ZONE,
            f"is in zone {offer.zone or '(none)'}, not {demands.zone}",
        ),
        (bool(missing), Obstacle.LABELS, f"lacks {', '.join(missing)}"),
        (candidate.status == "offline", Obstacle.OFFLINE, "is offline"),
        (candidate.status == "unhealthy", Obstacle.UNHEALTHY, "is unhealthy"),
        (
            candidate.drained or candidate.status == "draining",
            Obstacle.DRAINING,
            "is draining",
        ),
        (
            candidate.runner_id == backoff_runner,
            Obstacle.BACKING_OFF,
            "did not start it last time, so it stays away for a while",
        ),
        (candidate.full, Obstacle.FULL, "has no free capacity"),
    )
    for applies, obstacle, sentence in checks:
        if applies:
            return Standing(candidate.runner_id, obstacle, sentence)
    return Standing(candidate.runner_id, Obstacle.NONE, "could take it when it asks")


def nearest(standings: Sequence[Standing], limit: int) -> list[Standing]:
    """At most `limit` runners, those with the least in their way first."""
    order = list(Obstacle)
    return sorted(standings, key=lambda one: (-order.index(one.obstacle), one.runner_id))[:limit]


def count(standings: Sequence[Standing]) -> dict[str, int]:
    """How many runners each obstacle keeps away."""
    counted = Counter(one.obstacle.value for one in standings)
    return dict(sorted(counted.items()))


def fleet_reason(standings: Sequence[Standing]) -> Reason:
    """What the fleet says: nobody there, nobody fits, nobody free, or only a matter of time."""
    obstacles = {one.obstacle for one in standings}
    if not obstacles:
        return Reason.NO_RUNNER
    if Obstacle.NONE in obstacles:
        return Reason.WAITING
    if obstacles <= {Obstacle.CAPABILITY, Obstacle.ZONE, Obstacle.LABELS}:
        return Reason.NO_MATCH
    return Reason.NONE_AVAILABLE
