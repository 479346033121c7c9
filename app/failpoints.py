"""Faults on purpose, at named moments, for tests that kill the service where it hurts most.

Nothing is armed unless the settings allow it in so many words; while nothing is armed a moment
costs one look at an empty dict. Call sites read `if failpoints.ARMED: await failpoints.hit(…)`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from app.domain.errors import DatabaseUnavailable, OutcomeUnknown

Action = Literal["kill", "stop", "sleep", "error_before", "after_then_error", "drop_answer"]

NAMES = frozenset(
    {
        "create.after_insert",
        "create.after_commit",
        "claim.after_select",
        "claim.after_commit",
        "claim.client_gone",
        "batch.mid_rows",
        "start.after_commit",
        "heartbeat.after_commit",
        "complete.before_event",
        "complete.after_commit",
        "release.after_commit",
        "cancel.after_commit",
        "log.after_mask",
        "log.after_put",
        "log.after_rows",
        "log.after_commit",
        "artifact.ticket",
        "artifact.after_put",
        "artifact.after_verify",
        "output.after_head",
        "output.after_commit",
        "evidence.after_commit",
        "merge.after_put",
        "push.after_verify",
        "push.after_dedupe",
        "push.after_handler",
        "push.after_commit",
        "feed.after_page",
        "callback.after_claim",
        "callback.after_post",
        "callback.before_cursor",
        "callback.after_cursor",
        "leader.after_elect",
        "sweep.after_select",
        "sweep.mid_batch",
        "schedule.after_due",
        "schedule.after_fire",
        "outbox.after_publish",
        "migrate.mid_step",
        "partitions.after_detach",
        "retention.after_mark",
        "retention.after_object",
        "orphans.after_close",
    }
)


class AnswerDropped(BaseException):
    """The request was carried out and its answer is to be lost on the way."""


@dataclass
class Failpoint:
    """What happens at a moment: with which probability, and how often at most."""

    action: Action
    probability: float = 1.0
    times: int = 1_000_000
    seconds: float = 1.0


ARMED: dict[str, Failpoint] = {}


def arm(points: Mapping[str, Failpoint]) -> None:
    """Arm these moments and no others. ValueError for a name that does not exist."""
    unknown = sorted(set(points) - NAMES)
    if unknown:
        raise ValueError(f"there is no failpoint {', '.join(unknown)}")
    ARMED.clear()
    ARMED.update(points)


async def hit(name: str) -> None:
    """Let happen what is armed at this moment, if its dice say so."""
    point = _chosen(name)
    if point is None:
        return
    if point.action == "sleep":
        await asyncio.sleep(point.seconds)
    else:
        _happen(point)


def hit_blocking(name: str) -> None:
    """The same where nothing may be awaited."""
    point = _chosen(name)
    if point is None:
        return
    if point.action == "sleep":
        time.sleep(point.seconds)
    else:
        _happen(point)


def _chosen(name: str) -> Failpoint | None:
    point = ARMED.get(name)
    if point is None or point.times <= 0 or random.random() >= point.probability:  # noqa: S311
        return None
    point.times -= 1
    return point


def _happen(point: Failpoint) -> None:
    match point.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "error_before":
            raise DatabaseUnavailable
        case "after_then_error":
            raise OutcomeUnknown
        case "drop_answer":
            raise AnswerDropped
