"""Which statements would cross shards, read from the statements; a new one must be put in the docs.

The rows of an attempt, and all that hangs on it, would lie together: `docs/beyond-one-database.md`.
A statement stays on one shard when every such table in it is reached by one attempt's id; a batch
can be split by who sends it; whatever else touches such a table asks all shards.
"""

import itertools
import re
from pathlib import Path

import pytest

from app.store import tables
from tests.store.test_schema import STATEMENTS

PAGE = Path(__file__).parents[1] / "docs" / "beyond-one-database.md"
OF_AN_ATTEMPT = {
    "execution_attempts",
    "runner_leases",
    "attempt_events",
    "attempt_heartbeats",
    "log_streams",
    "raw_log_refs",
    "runner_output_refs",
    "evidence_refs",
    "artifact_refs",
    "artifact_uploads",
}
"""Distributed by the attempt's id; all other tables are few rows that every shard would hold."""
TOKEN = re.compile(
    r"--[^\n]*|'(?:[^']|'')*'|\$\d+|::\w+(?:\[\])?|[A-Za-z_][\w.]*|<>|<=|>=|[^\s\w]", re.DOTALL
)
READS = {"from", "join", "into", "update", "using"}
ONE, OTHER, MANY, ALL, NONE = "one shard", "another id", "a batch", "all shards", "no shard"


def tokens_of(text: str) -> list[str]:
    """Words, parameters and signs; no comments, strings or casts."""
    found = TOKEN.findall(text)
    return [one.lower() for one in found if not one.startswith(("--", "'", "::"))]


def tables_of(tokens: list[str]) -> list[tuple[str, str]]:
    """Every table of an attempt that is named, with the alias that it has there."""
    named = []
    for place, token in enumerate(tokens[1:], 1):
        if token in OF_AN_ATTEMPT and tokens[place - 1] in READS | {","}:
            rest = tokens[place + 1 : place + 3]
            alias = rest[1] if rest[:1] == ["as"] else rest[0] if rest else token
            named.append((token, alias if alias.isidentifier() else token))
    return named


def equals(tokens: list[str]) -> set[tuple[str, str]]:
    """The pairs of names and parameters that stand on both sides of an `=`."""
    pairs = set()
    for place, token in enumerate(tokens[1:-1], 1):
        if token == "=":
            pairs.add((tokens[place - 1], tokens[place + 1]))
            pairs.add((tokens[place + 1], tokens[place - 1]))
    return pairs


def reached(tokens: list[str]) -> str:
    """How far a statement reaches."""
    named = tables_of(tokens)
    if not named:
        return NONE
    pairs = equals(tokens)
    attempts = {alias for table, alias in named if table == "execution_attempts"}
    ids = {f"{alias}.id" for alias in attempts} | {"attempt_id"}
    ids |= {"id"} if attempts else set()
    by_parameter = any(
        right.startswith("$") and (left in ids or left.endswith(".attempt_id"))
        for left, right in pairs
    )
    if by_parameter:
        return ONE
    others = {f"{alias}.id" for _, alias in named} | {"id", "lease_id"}
    if any(right.startswith("$") and left in others for left, right in pairs):
        return OTHER
    in_batches = {("unnest", "("), ("any", "(")} & set(itertools.pairwise(tokens))
    return MANY if in_batches else ALL


REACHED = {text.split()[1]: reached(tokens_of(text)) for _, _, text in STATEMENTS}


def listed(title: str) -> set[str]:
    """The statements that the page lists under a heading."""
    section = PAGE.read_text().split(f"### {title}\n", 1)[1].split("\n#", 1)[0]
    return set(re.findall(r"`(\w+\.\w+)`", section))


@pytest.mark.parametrize(
    ("title", "reach"),
    [
        ("By the id of a lease or artifact", OTHER),
        ("Batches that a router would split", MANY),
        ("Asks all shards", ALL),
    ],
)
def test_the_page_lists_the_statements_that_leave_their_shard(title, reach):
    assert listed(title) == {name for name, found in REACHED.items() if found == reach}


def test_every_table_is_given_a_place():
    """A new one must be put among those of an attempt, or among the few that all hold."""
    page = PAGE.read_text()

    assert set(tables.metadata.tables) >= OF_AN_ATTEMPT
    assert [name for name in tables.metadata.tables if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("statement", "reach"),
    [
        ("SELECT 1 FROM execution_attempts a WHERE a.id = $1", ONE),
        ("SELECT 1 FROM raw_log_refs WHERE attempt_id = $2 AND stream = 'x = $1'", ONE),
        ("SELECT 1 FROM runner_leases l WHERE l.id = $1 AND l.lease_token_hash = $2", OTHER),
        ("SELECT 1 FROM runner_leases l WHERE l.runner_instance_id = $1", ALL),
        ("UPDATE runner_leases l SET phase = $1 FROM unnest($2::uuid[]) i(id)", MANY),
        ("SELECT 1 FROM runner_instances r WHERE r.id = $1", NONE),
        ("-- x\nSELECT 'from execution_attempts' FROM leaders", NONE),
    ],
)
def test_reach_of_a_statement(statement, reach):
    assert reached(tokens_of(statement)) == reach
