"""One line a fact while the stack runs: what happens to attempts, as it is recorded.

Read from the database of the stack and from nowhere else, so that looking costs no request. A fact
that commits late is still shown: the last seconds are read again, and what was shown is known.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import asyncpg

from app.domain.ids import short
from app.embedded.report import Report

_EVERY_SECONDS = 0.5
_REMEMBERED = 2000

_RECENT = """
-- watch.list_recent
SELECT e.id, e.attempt_id, e.event_type, e.payload, e.created_at, a.job_type, a.created_at AS since
FROM attempt_events e JOIN execution_attempts a ON a.id = e.attempt_id
WHERE e.created_at > greatest($1, now() - interval '10 s') ORDER BY e.created_at, e.event_number
LIMIT 500
"""


async def watch_attempts(state: dict[str, Any], report: Report) -> None:
    """Print every further event until cancelled; a database that is away is tried again."""
    shown: OrderedDict[Any, None] = OrderedDict()
    begun = None
    while True:
        try:
            connection = await _connect(state["database_url"])
            try:
                begun = begun or await connection.fetchval("SELECT now()")
                while True:
                    _show(await connection.fetch(_RECENT, begun), shown, report)
                    await asyncio.sleep(_EVERY_SECONDS)
            finally:
                with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                    await connection.close(timeout=1)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            await asyncio.sleep(1)


async def _connect(dsn: str) -> asyncpg.Connection[asyncpg.Record]:
    """A connection; a cancellation waits for it, since one broken off in between leaves a noise."""
    connecting = asyncio.ensure_future(asyncpg.connect(dsn, timeout=5))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        await asyncio.wait([connecting])
        if not connecting.cancelled() and connecting.exception() is None:
            await connecting.result().close(timeout=1)
        raise


def _show(rows: list[asyncpg.Record], shown: OrderedDict[Any, None], report: Report) -> None:
    for row in rows:
        if row["id"] in shown:
            continue
        shown[row["id"]] = None
        facts = json.loads(row["payload"])
        seconds = (row["created_at"] - row["since"]).total_seconds()
        report.event(
            row["created_at"].astimezone(),
            short(row["attempt_id"]),
            row["event_type"],
            _remark(row["event_type"], row["job_type"], facts, seconds),
        )
    while len(shown) > _REMEMBERED:
        shown.popitem(last=False)


def _remark(event_type: str, job_type: str, facts: dict[str, Any], seconds: float) -> str:
    """What is worth knowing beside the word itself."""
    match event_type:
        case "created":
            return f"{job_type}, by {facts.get('requested_by_service', '?')}"
        case "leased" | "lease_expired" | "lease_revoked" | "lease_released":
            return f"{facts.get('runner_instance_id')}, lease {facts.get('lease_number')}"
        case "heartbeat":
            return str(facts.get("phase", ""))
        case "succeeded" | "failed" | "cancelled" | "timed_out" | "lost":
            category = facts.get("failure_category")
            return f"{seconds:.1f} s" + (f", {category}" if category else "")
        case _:
            return ""
