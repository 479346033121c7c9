"""procrastinate as a library: `python -m bench.rival_procrastinate DSN SECONDS`.

One process, in the environment of the rivals. A life here is its own defer, fetch and finish of one
job, called directly, so that no polling stands in between. The best of some numbers of concurrent
workers counts.

What it does not do that the service does: it is no server (no HTTP, no identity, no validation of
requests); a deferral is not idempotent by a digest of the request (a `queueing_lock` is unique
while the job waits); a fetched job has no token that fences off a worker which lost it; heartbeats
are those of workers, not of jobs; there is no limit of time by the database, no feed of events that
readers follow by a cursor, no placement. It keeps the job's row and writes three events of it, as
the service does. Jobs are fetched one by one: it has no call for several.
"""

from __future__ import annotations

import asyncio
import json
import sys
from time import perf_counter

import uvloop
from procrastinate import App, PsycopgConnector
from procrastinate.jobs import Job, Status

WORKERS = (1, 4, 16)
QUEUE = "bench"


async def lives(app: App, seconds: float, workers: int) -> float:
    """Lives a second."""
    manager = app.job_manager
    began = perf_counter()
    done = 0

    async def work() -> None:
        nonlocal done
        worker = await manager.register_worker()
        job = Job(
            queue=QUEUE,
            lock=None,
            queueing_lock=None,
            task_name="ssh.command.run",
            task_kwargs={"command": "uptime"},
        )
        while perf_counter() < began + seconds:
            await manager.defer_job_async(job)
            fetched = await manager.fetch_job([QUEUE], worker)
            if fetched is not None:
                await manager.finish_job(fetched, Status.SUCCEEDED, delete_job=False)
                done += 1

    await asyncio.gather(*(work() for _ in range(workers)))
    return done / (perf_counter() - began)


def app_on(dsn: str, connections: int) -> App:
    """Its application over this database."""
    return App(connector=PsycopgConnector(conninfo=dsn, min_size=1, max_size=connections))


async def main(dsn: str, seconds: float) -> None:
    """Fill a little, gather statistics, measure on new connections."""
    async with app_on(dsn, 4).open_async() as app:
        await app.schema_manager.apply_schema_async()
        await lives(app, seconds / 3, 4)
        await app.connector.execute_query_async("ANALYZE")
    rates = {}
    for workers in WORKERS:
        async with app_on(dsn, workers).open_async() as app:
            rates[workers] = await lives(app, seconds, workers)
    print(json.dumps(rates))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], float(sys.argv[2])))
