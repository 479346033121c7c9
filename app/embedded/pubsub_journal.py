"""Undelivered messages on disk, so that they outlive a restart of the development stack."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import orjson

from app.embedded.pubsub_model import Message

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS undelivered (
        subscription TEXT NOT NULL,
        message_id TEXT NOT NULL,
        topic TEXT NOT NULL,
        data BLOB NOT NULL,
        attributes TEXT NOT NULL,
        ordering_key TEXT NOT NULL,
        published_at TEXT NOT NULL,
        UNIQUE (subscription, message_id)
    )
"""


class Journal:
    """One row for each message and subscription, from its publication until it is settled.

    It survives a kill of the process; the last rows may be lost with the machine's power. Used
    from one thread.
    """

    def __init__(self, data_dir: Path) -> None:
        data_dir.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(data_dir / "pubsub.sqlite3")
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        with self._database:
            self._database.execute(_SCHEMA)

    def close(self) -> None:
        """Close the file. Closing twice is allowed."""
        self._database.close()

    def add(self, rows: Iterable[tuple[str, Message]]) -> None:
        """Write messages, each with the name of a subscription, all or none."""
        with self._database:
            self._database.executemany(
                "INSERT INTO undelivered VALUES (?, ?, ?, ?, ?, ?, ?)",
                [_row(subscription, message) for subscription, message in rows],
            )

    def remove(self, subscription: str, message_id: str) -> None:
        """Forget a message that was acked or dead-lettered."""
        with self._database:
            self._database.execute(
                "DELETE FROM undelivered WHERE subscription = ? AND message_id = ?",
                (subscription, message_id),
            )

    def remove_all(self, subscription: str) -> None:
        """Forget everything of a subscription that was deleted."""
        with self._database:
            self._database.execute(
                "DELETE FROM undelivered WHERE subscription = ?", (subscription,)
            )

    def undelivered(self, subscription: str) -> Iterator[Message]:
        """The messages of a subscription that an earlier process left, oldest first."""
        with closing(
            self._database.execute(
                "SELECT message_id, topic, data, attributes, ordering_key, published_at "
                "FROM undelivered WHERE subscription = ? ORDER BY rowid",
                (subscription,),
            )
        ) as rows:
            for message_id, topic, data, attributes, ordering_key, published_at in rows:
                yield Message(
                    message_id=message_id,
                    topic=topic,
                    data=data,
                    attributes=orjson.loads(attributes),
                    ordering_key=ordering_key,
                    published_at=datetime.fromisoformat(published_at),
                )

    def newest_id(self) -> int:
        """The largest message id in the journal, 0 when it is empty."""
        found = self._database.execute(
            "SELECT coalesce(max(CAST(message_id AS INTEGER)), 0) FROM undelivered"
        ).fetchone()
        return int(found[0])


def _row(subscription: str, message: Message) -> tuple[str, str, str, bytes, str, str, str]:
    return (
        subscription,
        message.message_id,
        message.topic,
        message.data,
        orjson.dumps(dict(message.attributes)).decode(),
        message.ordering_key,
        message.published_at.isoformat(),
    )
