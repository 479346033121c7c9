"""The service with handlers of the tests, as a program: `python -m tests.push.service`.

`ledger.add` writes a line that nothing keeps from being written twice, so that a second effect of
a message would be seen.
"""

import asyncio
import random
from collections.abc import Sequence

from app.domain.commands import Command
from app.handlers import all_handlers
from app.handlers.registry import Context, Registry
from app.serve import serve
from app.settings import load

LEDGER = "CREATE TABLE IF NOT EXISTS ledger (number bigint NOT NULL, envelope_id text NOT NULL)"
HANDLERS = ("ledger.add", "ledger.note", "attempt.create", "lease.heartbeat")


class Add(Command):
    """Write a line."""

    number: int
    """What the line says."""
    seconds: float = 0
    """How long it takes."""
    note: str = ""
    """What is said beside it."""
    failure_rate: float = 0
    """How likely it fails, after it has written."""


def registry_of_tests() -> Registry:
    registry = all_handlers.build()

    @registry.handler("ledger.add", Add)
    async def add(context: Context, command: Add) -> None:
        await context.transaction.execute(
            "INSERT INTO ledger (number, envelope_id) VALUES ($1, $2)",
            command.number,
            context.envelope.id,
        )
        await asyncio.sleep(command.seconds)
        if random.random() < command.failure_rate:
            raise RuntimeError("as asked")

    @registry.set_handler("ledger.note", Add)
    async def note(contexts: Sequence[Context], commands: Sequence[Add]) -> list[None]:
        await contexts[0].transaction.execute(
            "INSERT INTO ledger SELECT * FROM unnest($1::bigint[], $2::text[])",
            [command.number for command in commands],
            [context.envelope.id for context in contexts],
        )
        await asyncio.sleep(max(command.seconds for command in commands))
        if any(random.random() < command.failure_rate for command in commands):
            raise RuntimeError("as asked")
        return [None] * len(commands)

    return registry


if __name__ == "__main__":
    serve(load(), registry_of_tests())
