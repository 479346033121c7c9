"""What the sweeps of this leader did, gathered here and told to the database each second."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from app.loops.loop import Loop, Result
from app.services import Services
from app.store import leaders, sweeps
from app.store.database import Connection
from app.store.sweeps import Passes


@dataclass
class _Record:
    """One sweep: counters since the last report, and how its last passes went."""

    runs: int = 0
    done: int = 0
    failures: int = 0
    failing: int = 0
    behind_seconds: float = 0.0
    unfinished_since: float | None = None
    ended_at: float | None = None
    last_seconds: float | None = None
    last_done: int | None = None
    failed_at: float | None = None
    last_error: str | None = None
    changed: bool = False

    def unfinished(self, result: Result) -> float:
        """For how many seconds each pass has left something to do."""
        if not result.more or self.ended_at is None:
            self.unfinished_since = None
            return 0.0
        self.unfinished_since = self.unfinished_since or self.ended_at
        return self.ended_at - self.unfinished_since


class Reports:
    """The passes of one leader's sweeps."""

    def __init__(self, loops: list[Loop]) -> None:
        """`loops`: those that only a leader runs."""
        self._records = {loop.name: _Record() for loop in loops}
        self._every = {loop.name: loop.interval_seconds for loop in loops}
        self._unpassed = self._frequent()

    def _frequent(self) -> set[str]:
        """The sweeps whose last passes `readyz` speaks of: those that run every few seconds."""
        return {name for name, every in self._every.items() if every <= 3.0}  # noqa: PLR2004

    def passed(self, name: str, result: Result, seconds: float) -> None:
        """Note a good pass."""
        record = self._records[name]
        record.runs += 1
        record.done += result.done
        record.failing = 0
        record.ended_at, record.last_seconds, record.last_done = monotonic(), seconds, result.done
        record.behind_seconds = max(result.behind_seconds, record.unfinished(result))
        record.changed = True
        self._unpassed.discard(name)

    def failed(self, name: str, reason: str) -> None:
        """Note a failed pass: its reason is the name of a fact or class, never a text of others."""
        record = self._records[name]
        record.failures += 1
        record.failing += 1
        record.failed_at, record.last_error = monotonic(), reason
        record.changed = True

    async def tell(self, services: Services) -> None:
        """Write what is new under this term. Raises LeadershipLost, or as the database does."""
        passes = [
            self._passes(name, record) for name, record in self._records.items() if record.changed
        ]
        if not passes:
            return
        held, swept = services.leadership, not self._unpassed
        for record in self._records.values():
            record.changed = False

        async def write(conn: Connection) -> None:
            term = await held.prove(conn)
            await sweeps.report(conn, passes, term)
            if swept:
                await leaders.mark_swept(conn, held.name, held.holder)

        await services.election.run(write)
        if swept:
            self._unpassed = self._frequent()

    def _passes(self, name: str, record: _Record) -> Passes:
        now = monotonic()
        runs, done, failures = record.runs, record.done, record.failures
        record.runs = record.done = record.failures = 0
        return Passes(
            name=name,
            interval_seconds=self._every[name],
            runs=runs,
            done=done,
            failures=failures,
            failing=record.failing,
            behind_seconds=record.behind_seconds,
            last_run_age=None if record.ended_at is None else now - record.ended_at,
            last_run_seconds=record.last_seconds,
            last_done=record.last_done,
            failed_age=None if record.failed_at is None else now - record.failed_at,
            last_error=record.last_error,
        )
