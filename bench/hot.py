"""`make bench-hot`: which updates of a service at work stay in their page.

Runners live whole lives over HTTP, with heartbeats as often as attempts of minutes have them, while
the loops sweep. Then PostgreSQL's own counters, a table: its updates, how many were HOT (wrote into
no index), and how many moved to another page for want of room.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import asyncpg

from bench.lifecycles import CREATE, START, Fleet, Runner
from bench.parts import Parts, described_machine
from bench.wire import Wire
from tests.driver import new_attempt

LEASES = 16
BEATS = 20
PHASES = ("pulling_artifacts", "resolving_secrets", "executing", "completing")

_COUNTERS = """
SELECT relname, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_newpage_upd, autovacuum_count
FROM pg_stat_user_tables WHERE n_tup_upd > 0 ORDER BY n_tup_upd DESC
"""


async def live(runner: Runner, control: Wire) -> None:
    """Lives of as many attempts as a claim takes, with BEATS heartbeats each, sent together."""
    attempts = [new_attempt(placement={"zone": runner.zone}) for _ in range(LEASES)]
    await control.call(CREATE, "POST", "/v1/attempts:batch", {"attempts": attempts})
    claimed = await runner.claim(LEASES)
    for one in claimed:
        await runner.under(START, one, {})
    for number in range(1, BEATS + 1):
        await _beat(runner, claimed, number)
    for one in claimed:
        await runner.under("complete", one, {"outcome": "succeeded"})


async def _beat(runner: Runner, claimed: list[dict], number: int) -> None:
    """One heartbeat for each lease; every fifth tells of another phase."""
    beats = [
        {
            "lease_id": one["lease"]["id"],
            "lease_token": one["lease_token"],
            "session_id": runner.session_id,
            "sequence": number,
            "progress_percent": number,
            "phase": PHASES[number * len(PHASES) // (BEATS + 1)],
        }
        for one in claimed
    ]
    if beats:
        await runner.wire.call("beat", "POST", "/v1/leases:heartbeat", {"heartbeats": beats})


async def report(runner: Runner, number: int) -> None:
    """What the runner says of itself."""
    body = {
        "session_id": runner.session_id,
        "sequence": number,
        "status": "busy",
        "capacity_total": 1000,
    }
    await runner.wire.call("report", "PUT", f"/v1/runners/{runner.id}/status", body)


async def work(fleet: Fleet, zone: str, until: float) -> None:
    """One runner and the control plane that feeds it."""
    runner = await fleet.runner(defaultdict(list), zone)
    control = await fleet.wire("control-plane", defaultdict(list))
    number = 0
    while time.perf_counter() < until:
        number += 1
        await live(runner, control)
        await report(runner, number)
    await runner.wire.close()
    await control.close()


async def show(sql: asyncpg.Connection) -> None:
    """One line a table."""
    await asyncio.sleep(1.5)  # the service's connections tell their counters once a second
    print(f"  {'table':<26}{'inserted':>10}{'updated':>10}{'HOT':>8}{'left its page':>16}")
    for name, inserted, updated, hot, left, _ in await sql.fetch(_COUNTERS):
        print(f"  {name:<26}{inserted:>10,}{updated:>10,}{hot / updated:>8.1%}{left:>16,}")


async def main() -> None:
    """Some seconds of work, then the counters."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--runners", type=int, default=16)
    given = parser.parse_args()
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        async with Parts(Path(folder)) as parts:
            service = await parts.serve()
            fleet = Fleet(parts, service.url)
            until = time.perf_counter() + given.seconds
            await asyncio.gather(*(work(fleet, f"z{n}", until) for n in range(given.runners)))
            sql = await asyncpg.connect(parts.postgres.dsn)
            await show(sql)
            await sql.close()


if __name__ == "__main__":
    asyncio.run(main())
