"""What a loop is: one bounded pass, and nothing about when or how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from app.services import Services


@dataclass(frozen=True, slots=True)
class Result:
    """What one pass did. `more`: its batch was full, so the next pass should follow at once."""

    done: int
    more: bool = False
    behind_seconds: float = 0.0
    """How long the oldest thing that the pass found had been due; 0: nothing was, or not known."""


class Loop(Protocol):
    """One kind of upkeep. Tests call `run_once`; the supervisor owns everything else.

    A pass is bounded in rows by itself, and in time by the supervisor: `limit_seconds` where a loop
    has such an attribute, otherwise a minute. One that must write only as leader proves the term in
    its transaction: `await services.leadership.prove(conn)`.
    """

    name: str
    interval_seconds: float
    leader_only: bool

    async def run_once(self, services: Services) -> Result:
        """One bounded pass in a transaction of its own."""
        ...


@runtime_checkable
class Closing(Protocol):
    """A loop that holds something between its passes."""

    async def close(self, services: Services) -> None:
        """Let go of it; no pass is running any more."""
        ...
