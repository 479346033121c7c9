"""A database clock that stands still until a test moves it."""

from datetime import UTC, datetime, timedelta

import asyncpg

_FUNCTIONS = (("clock_now", "STABLE", "now()"), ("clock_fact", "VOLATILE", "clock_timestamp()"))
_CALM = (
    "UPDATE service_ticks SET last_tick_at = clock_fact(), latest_tick_at = NULL, "
    "outage_ended_at = NULL, breaker_began_at = NULL"
)


class Clock:
    """Moves the two functions from which the database of the lifecycle's tests takes its time."""

    def __init__(self, sql: asyncpg.Connection) -> None:
        self._sql = sql
        self.now = datetime.now(UTC)

    async def stop(self) -> None:
        """From here on time passes only by `forward`."""
        await self._set()
        await self._sql.execute(_CALM)

    async def forward(self, seconds: float, *, serving: bool = True) -> None:
        """Let time pass; `serving`: the service ticked all the while, as it does when it is up."""
        self.now += timedelta(seconds=seconds)
        await self._set()
        if serving:
            await self._sql.execute("UPDATE service_ticks SET last_tick_at = clock_fact()")

    async def _set(self) -> None:
        for name, volatility, _ in _FUNCTIONS:
            await self._replace(name, volatility, f"timestamptz '{self.now.isoformat()}'")

    async def run_again(self) -> None:
        """Back to the real clock, as if nothing had happened."""
        for name, volatility, body in _FUNCTIONS:
            await self._replace(name, volatility, body)
        await self._sql.execute(_CALM)

    async def _replace(self, name: str, volatility: str, body: str) -> None:
        quoted = body.replace("'", "''")
        await self._sql.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS timestamptz "
            f"LANGUAGE sql {volatility} AS 'SELECT {quoted}'"
        )
