"""Many commands in one transaction: a row that the server refuses must fail alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TypeVar

import asyncpg

from app.domain.errors import OutcomeUnknown, ServiceError
from app.store.database import Connection, Database

C = TypeVar("C")
O = TypeVar("O")  # noqa: E741 - an outcome

Work = Callable[[Connection, Sequence[C]], Awaitable[Sequence[O | ServiceError]]]


def rounds(commands: Sequence[C], key: Callable[[C], Hashable]) -> list[list[int]]:
    """The positions of the commands in rounds of which each names a key at most once.

    Two commands on one row in one statement would silently do one of them; the second waits.
    """
    used: dict[Hashable, int] = {}
    result: list[list[int]] = []
    for position, command in enumerate(commands):
        number = used.get(key(command), 0)
        used[key(command)] = number + 1
        if number == len(result):
            result.append([])
        result[number].append(position)
    return result


async def run_batch(
    database: Database, work: Work[C, O], commands: Sequence[C]
) -> list[O | ServiceError]:
    """Run `work` over all commands in one transaction; outcomes by position.

    When the server refuses the whole before COMMIT was sent, it is halved until the row that
    spoils it stands alone and fails alone. After COMMIT was sent without an answer all are unknown
    and none is run again.
    """
    try:
        return list(await database.run(lambda conn: work(conn, commands), pinned=True))
    except OutcomeUnknown as error:
        return [error] * len(commands)
    except (ServiceError, asyncpg.PostgresError) as error:
        if len(commands) == 1:
            if isinstance(error, ServiceError):
                return [error]
            raise
        if isinstance(error, ServiceError) and not error.spoils_only_its_row():
            return [error] * len(commands)
    middle = len(commands) // 2
    first = await run_batch(database, work, commands[:middle])
    return first + await run_batch(database, work, commands[middle:])
