"""`make bench-rivals`: procrastinate and PgQueuer doing the same life, as libraries in one process.

They run on the same embedded PostgreSQL as the rest, each in a database of its own and in a process
of its own with `.venv-bench`, which holds the locked set requirements-bench.lock and nothing of the
service's. What each does not do that the service does stands in bench/rival_procrastinate.py and
bench/rival_pgqueuer.py; no HTTP is between them and the database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from app.embedded.guarded import clean_environment
from app.embedded.postgres import EmbeddedPostgres
from bench.limits import database
from bench.parts import described_machine

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-bench" / "bin" / "python"
MISSING = "procrastinate and PgQueuer are not installed: make bench-rivals does that, once."


@dataclass(frozen=True)
class Rival:
    """One library, in one way of use."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()


PROCRASTINATE = Rival("procrastinate", "procrastinate")
PGQUEUER = Rival("PgQueuer, single enqueue, batches of 32", "pgqueuer", ("single",))
PGQUEUER_BATCHES = Rival("PgQueuer, enqueue in hundreds as well", "pgqueuer", ("batches",))
RIVALS = (PROCRASTINATE, PGQUEUER, PGQUEUER_BATCHES)

Rates = dict[str, float]
"""Lives a second by the number of concurrent workers."""


async def measure(postgres: EmbeddedPostgres, seconds: float) -> dict[Rival, Rates]:
    """Each of them for so long at each number of workers; nothing where they are not installed."""
    if not PYTHON.exists():
        return {}
    return {
        rival: await _run(await database(postgres, f"rival_{number}"), rival, seconds)
        for number, rival in enumerate(RIVALS)
    }


async def _run(dsn: str, rival: Rival, seconds: float) -> Rates:
    process = await asyncio.create_subprocess_exec(
        *(PYTHON, "-m", f"bench.rival_{rival.module}", dsn, str(seconds), *rival.arguments),
        cwd=ROOT,
        env=clean_environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    rates: Rates = json.loads(out)
    return rates


def show(rates: dict[Rival, Rates]) -> None:
    """The figures, line by line."""
    if not rates:
        print(f"\n  {MISSING}", flush=True)
        return
    print(f"\n  {'as libraries, 1 / 4 / 16 workers':<46}{'lives a second':>22}", flush=True)
    for rival, by_workers in rates.items():
        each = " / ".join(f"{rate:.0f}" for rate in by_workers.values())
        print(f"  {rival.name:<46}{each:>22}")


async def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    seconds = parser.parse_args().seconds
    if not PYTHON.exists():
        sys.exit(MISSING)
    print(described_machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        postgres = EmbeddedPostgres(Path(folder) / "postgres")
        await postgres.start()
        try:
            show(await measure(postgres, seconds))
        finally:
            await postgres.stop()


if __name__ == "__main__":
    asyncio.run(main())
