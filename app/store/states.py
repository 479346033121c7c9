"""Statements on state documents: JSON by key, replaced only by who knows its version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from app.store.database import Connection


@dataclass(frozen=True, slots=True)
class Document:
    """A stored document; `version` counts its changes from 1."""

    key: str
    document: dict[str, Any]
    version: int
    updated_at: datetime


def _document(row: asyncpg.Record) -> Document:
    return Document(row["key"], json.loads(row["document"]), row["version"], row["updated_at"])


_FIND = """
-- states.find
SELECT s.key, s.document, s.version, s.updated_at FROM state s WHERE s.key = $1
"""

_CREATE = """
-- states.create_once
INSERT INTO state AS s (key, document, version, updated_at) VALUES ($1, $2::jsonb, 1, clock_fact())
ON CONFLICT (key) DO NOTHING RETURNING s.key, s.document, s.version, s.updated_at
"""

_REPLACE = """
-- states.replace
UPDATE state s SET document = $2::jsonb, version = s.version + 1, updated_at = clock_fact()
WHERE s.key = $1 AND s.version = $3
RETURNING s.key, s.document, s.version, s.updated_at
"""


async def find(conn: Connection, key: str) -> Document | None:
    """The document, or None."""
    row = await conn.fetchrow(_FIND, key)
    return None if row is None else _document(row)


async def put(
    conn: Connection, key: str, document: Mapping[str, Any], version: int | None
) -> Document | None:
    """Store the document if the stored one has this version (None: there is none yet).

    None if it has another one. Two who put at once: the second waits and then gets None.
    """
    text = json.dumps(document)
    if version is None:
        row = await conn.fetchrow(_CREATE, key, text)
    else:
        row = await conn.fetchrow(_REPLACE, key, text, version)
    return None if row is None else _document(row)
