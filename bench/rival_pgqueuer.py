"""PgQueuer as a library: `python -m bench.rival_pgqueuer DSN SECONDS single|batches`.

One process, in the environment of the rivals. A life here is its own enqueue, dequeue of up to 32
jobs and the log of their success, called directly, so that no polling stands in between; `single`
enqueues job by job, `batches` in hundreds. The best of some numbers of concurrent workers counts.

What it does not do that the service does: it is no server (no HTTP, no identity, no validation of
requests); a creation is not idempotent by a digest of the request (a `dedupe_key` is unique while
the job is queued); a picked job has no token that fences off a worker which lost it; there is no
start apart from the claim, no limit of time by the database, no feed of events that readers follow
by a cursor, no placement. A finished job's row is deleted; what stays is a line in a log table.
A job as short as these sends no heartbeat, so none is counted against it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from time import perf_counter
from uuid import uuid4

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.queries import Queries

WORKERS = (1, 4, 16)
ENTRYPOINT = "ssh.command.run"
PAYLOAD = json.dumps({"command": "uptime"}).encode()
BATCH, HUNDREDS = 32, 100


async def enqueue_singly(queries: Queries) -> None:
    """A batch of jobs, one call each."""
    for _ in range(BATCH):
        await queries.enqueue(ENTRYPOINT, PAYLOAD)


async def enqueue_in_hundreds(queries: Queries) -> None:
    """A hundred jobs by one call."""
    await queries.enqueue([ENTRYPOINT] * HUNDREDS, [PAYLOAD] * HUNDREDS, [0] * HUNDREDS)


async def finish(queries: Queries, manager: object) -> int:
    """Dequeue at most a batch and log its success; how many there were."""
    jobs = await queries.dequeue(
        BATCH,
        {ENTRYPOINT: EntrypointExecutionParameter(concurrency_limit=0)},
        manager,
        None,
        timedelta(seconds=30),
    )
    if jobs:
        await queries.log_jobs([(job, "successful", None) for job in jobs])
    return len(jobs)


async def lives(
    queries: Queries, seconds: float, workers: int, enqueue: Callable[[Queries], Awaitable[None]]
) -> float:
    """Lives a second."""
    began = perf_counter()
    done = 0

    async def work() -> None:
        nonlocal done
        manager = uuid4()
        while perf_counter() < began + seconds:
            await enqueue(queries)
            while count := await finish(queries, manager):
                done += count

    await asyncio.gather(*(work() for _ in range(workers)))
    return done / (perf_counter() - began)


async def main(dsn: str, seconds: float, mode: str) -> None:
    """Fill a little, gather statistics, measure on new connections."""
    enqueue = enqueue_singly if mode == "single" else enqueue_in_hundreds
    async with asyncpg.create_pool(dsn, min_size=1, max_size=4) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        await lives(queries, seconds / 3, 4, enqueue)
        await pool.execute("VACUUM (ANALYZE)")
    rates = {}
    for workers in WORKERS:
        async with asyncpg.create_pool(dsn, min_size=workers, max_size=workers) as pool:
            queries = Queries(AsyncpgPoolDriver(pool))
            rates[workers] = await lives(queries, seconds, workers, enqueue)
    print(json.dumps(rates))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3]))
