"""Recorded lives as scripts of pgbench, and pgbench itself, from the wheel of the embedded server.

A statement goes to pgbench word for word, prepared, its parameters as values of the same types:

- what is the same in every life stays as it was recorded;
- what differs from runner to runner (its id, its session, its placement class) is picked by the
  number of the connection, so that each connection is a runner;
- what differs from life to life (ids, keys, tokens' hashes) is made anew for every round by one
  SELECT in front of it, which touches no table. One that was used twice is the same again twice.

Steps of one statement commit by themselves, which is the quickest that pgbench can do; the others
stand between BEGIN and COMMIT. The settings that the service gives its hot transactions come with
the connection: one plan for all parameters, made without sequential scans. Otherwise plans that
were made over empty tables would last for as long as the connection does.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import SecretStr

from app.embedded.guarded import clean_environment
from app.embedded.postgres import program
from app.settings.groups import DatabaseSettings
from app.store.database import Database
from bench.life import Statement, Step

MISSING = (
    "pgbench is not there. It comes with the embedded PostgreSQL (make install); elsewhere\n"
    "install it (Debian: sudo apt install postgresql) and give PGBENCH=/path/to/pgbench."
)


def pgbench() -> Path:
    """The program: `PGBENCH`, or the embedded server's. SystemExit that says what to install."""
    named = os.environ.get("PGBENCH")
    found = Path(named) if named else program("pgbench")
    if not found.exists():
        raise SystemExit(MISSING)
    return found


# --- rendering ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """A script, and the texts that it is given as variables."""

    text: str
    variables: Mapping[str, str] = field(default_factory=dict)


def render(rounds: Sequence[Sequence[Step]]) -> Script:
    """The script of two recordings of the first runner, then one of each further runner."""
    return _Renderer(rounds).script()


class _Renderer:
    def __init__(self, rounds: Sequence[Sequence[Step]]) -> None:
        shapes = {tuple(one.sql for step in steps for one in step.statements) for steps in rounds}
        assert len(shapes) == 1, "the recordings are not of the same statements"
        self._steps = rounds[0]
        self._rounds = [[one for step in steps for one in step.statements] for steps in rounds]
        self._texts: dict[str, str] = {}  # by value: the variable that holds it
        self._fresh: dict[Any, int] = {}  # by recorded value: its number within a round
        self._made: dict[str, str] = {}  # by expression: the variable of a round that holds it

    def script(self) -> Script:
        """BEGIN, statements, COMMIT of each step, behind what makes this round's values."""
        number, lines = 0, []
        for step in self._steps:
            bodies = []
            for statement in step.statements:
                bodies.append(self._statement(number, statement))
                number += 1
            if len(bodies) > 1:
                bodies = ["BEGIN;", *bodies, "COMMIT;"]
            lines += bodies
        made = ",\n    ".join(f"{made} AS {name}" for made, name in self._made.items())
        head = [
            "\\set round random(1, 9223372036854775806)",
            "WITH r AS MATERIALIZED (SELECT :round::text AS round, lpad(to_hex((1000 * extract(",
            "    epoch FROM clock_timestamp()))::bigint), 12, '0') || '7' AS now)",
            f"SELECT {made}\nFROM r\n\\gset",
        ]
        return Script(
            "\n".join([*head, *lines]) + "\n", {name: text for text, name in self._texts.items()}
        )

    def _statement(self, number: int, statement: Statement) -> str:
        found = re.search(r"(?<!:):\w", statement.sql)
        assert found is None, f"pgbench would take {found} for a variable"
        arguments = [
            self._argument([statements[number].arguments[position] for statements in self._rounds])
            for position in range(len(statement.arguments))
        ]
        sql = re.sub(r"\$(\d+)", lambda match: arguments[int(match[1]) - 1], statement.sql)
        return sql.strip() + ";"

    def _argument(self, values: Sequence[Any]) -> str:
        """What stands in the place of a parameter; `values` are those of all recordings."""
        first, second, *others = values
        if all(value == first for value in values):
            return "NULL" if first is None else f":{self._text(as_text(first))}"
        if first == second:
            texts = [as_text(value) for value in (first, *others)]
            chosen = ", ".join(f":{self._text(text)}" for text in texts)
            return f":{self._make(f'(ARRAY[{chosen}]::text[])[:client_id::int + 1]')}"
        assert isinstance(first, (list, tuple))
        assert all(one != other for one, other in zip(first, second, strict=True)), (first, second)
        numbers = [self._fresh.setdefault(one, len(self._fresh)) for one in first]
        form = self._form(first[0], second[0])
        if len(numbers) == 1:
            only = f"(SELECT md5(r.round || '/{numbers[0]}') AS hash) u"
            return ":" + self._make(f"(SELECT '{{' || {form} || '}}' FROM {only})")
        listed = ", ".join(map(str, numbers))
        return ":" + self._make(
            f"(SELECT array_agg({form} ORDER BY u.place)::text FROM (SELECT n, place, "
            f"md5(r.round || '/' || n) AS hash FROM unnest(ARRAY[{listed}]) "
            "WITH ORDINALITY i(n, place)) u)"
        )

    def _form(self, one: Any, other: Any) -> str:
        """The expression of a value of this round that looks as these two do."""
        if isinstance(one, UUID):
            by_time = one.version == 7  # noqa: PLR2004 - RFC 9562
            return "r.now || right(u.hash, 19)" if by_time else "u.hash"
        head = one[: one.rfind(":") + 1]
        assert other.startswith(head), (one, other)
        length = len(one) - len(head)
        text = f"left(repeat(u.hash, {length // 32 + 1}), {length})"
        return f":{self._text(head)}::text || {text}" if head else text

    def _text(self, value: str) -> str:
        return self._texts.setdefault(value, f"t{len(self._texts)}")

    def _make(self, expression: str) -> str:
        return self._made.setdefault(expression, f"v{len(self._made)}")


def as_text(value: Any) -> str:
    """A parameter as the text that PostgreSQL reads it from."""
    if isinstance(value, (list, tuple)):
        return (
            "{" + ",".join("NULL" if one is None else _quoted(as_text(one)) for one in value) + "}"
        )
    if isinstance(value, dt.timedelta):
        return f"{value.total_seconds()} seconds"
    return str(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# --- running --------------------------------------------------------------------------------------


def hot_settings(dsn: str) -> dict[str, str]:
    """What the service sets in its hot transactions, read from the very words that do it."""
    begin = Database(DatabaseSettings(url=SecretStr(dsn)))._begin_pinned  # noqa: SLF001
    return dict(re.findall(r"SET LOCAL (\w+) = (\w+)", begin))


@dataclass(frozen=True)
class Run:
    """What pgbench measured."""

    rounds_a_second: float
    latency_ms: float
    rounds: int

    @property
    def seconds(self) -> float:
        """How long it ran, without the time in which connections were made."""
        return self.rounds / self.rounds_a_second


async def run(
    dsn: str,
    script: Script,
    folder: Path,
    *limits: str,
    connections: int = 1,
    settings: Mapping[str, str] | None = None,
) -> Run:
    """Run it; AssertionError with what pgbench said unless all of it went well.

    `limits`: pgbench's own options, such as `-T 10` (seconds) or `-t 1` (rounds a connection).
    """
    path = folder / "script.sql"
    path.write_text(script.text)
    given = chain.from_iterable(("-D", f"{key}={text}") for key, text in script.variables.items())
    process = await asyncio.create_subprocess_exec(
        *(pgbench(), "-n", "-M", "prepared", "-f", path, "-c", str(connections)),
        *("-j", str(min(connections, os.cpu_count() or 1)), "--max-tries", "4", *limits),
        *(*given, dsn),
        env=clean_environment(PGOPTIONS=options(settings or {})),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = (text.decode() for text in await process.communicate())
    assert process.returncode == 0, f"{err}\n{out}"
    return Run(
        _number(r"tps = ([\d.]+)", out),
        _number(r"latency average = ([\d.]+)", out),
        int(_number(r"actually processed: (\d+)", out)),
    )


def options(settings: Mapping[str, str]) -> str:
    """Server settings as a connection's options."""
    return " ".join(f"-c {name}={value}" for name, value in settings.items())


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1])
