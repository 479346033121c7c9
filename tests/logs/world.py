"""Who writes and who reads a log."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import asyncpg
import httpx

from app.loops.merge_logs import MergeLogs
from app.services import Services
from tests.driver import Control, Held

JOB = "verify.http"
"""A job that may go on under a further lease after it had started."""
PROFILE = {"runner_kind": "verification", "capabilities": ["verify.*"]}


async def send(
    held: Held,
    data: bytes,
    sizes: Iterator[int],
    stream: str = "stdout",
    mask: list[str] | None = None,
) -> None:
    """Send a text by a sender that has so many more bytes each turn, and obeys the answers."""
    at = end = 0
    while True:
        end = min(len(data), max(end, at) + next(sizes))
        final = end == len(data)
        answer = await held.log_json(data[at:end], at, stream, final=final, mask=mask or [])
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["need_more"] is (body["next_offset"] == at and end > at and not final)
        at = body["next_offset"]
        if final:
            assert (at, body["final"]) == (len(data), True)
            return


class Logs:
    """What is stored and what is read."""

    def __init__(self, control: Control, services: Services, sql: asyncpg.Connection) -> None:
        self.control, self.services, self.sql = control, services, sql

    async def read(self, held: Held, stream: str = "stdout", **query: Any) -> httpx.Response:
        answer = await self.control.read_log(held.attempt_id, stream, params=query)
        assert answer.status_code in {200, 206}, answer.text
        return answer

    async def text(self, held: Held, stream: str = "stdout", **query: Any) -> bytes:
        return (await self.read(held, stream, **query)).content

    async def search(self, held: Held, q: str, **query: Any) -> list[dict[str, Any]]:
        """All hits, over all pages."""
        found, token = [], None
        while True:
            params = {"q": q, **query, **({"page_token": token} if token else {})}
            path = f"/v1/attempts/{held.attempt_id}/logs:search"
            answer = await self.control.call("GET", path, params=params)
            assert answer.status_code == 200, answer.text
            found += answer.json()["items"]
            token = answer.json()["next_page_token"]
            if token is None:
                return found

    async def stored(self) -> list[tuple[str, bytes]]:
        """Every object that a row names, by its key."""
        keys = await self.sql.fetch("SELECT DISTINCT key FROM artifact_refs ORDER BY key")
        return [(row["key"], await self.body(row["key"])) for row in keys]

    async def body(self, key: str) -> bytes:
        return b"".join([piece async for piece in self.services.objects.read(key)])

    async def merge(self) -> int:
        return (await MergeLogs().run_once(self.services)).done

    async def assert_rows_fit(self) -> None:
        """Every chunk's bytes are in its object; each stream is gapless and as long as it says."""
        rows = await self.sql.fetch(
            "SELECT r.*, f.key, f.state FROM raw_log_refs r "
            "JOIN artifact_refs f ON f.id = r.artifact_ref_id "
            "ORDER BY r.attempt_id, r.lease_number, r.stream, r.stream_offset"
        )
        for row in rows:
            body = await self.body(row["key"])
            chunk = body[row["object_offset"] : row["object_offset"] + row["byte_size"]]
            assert (len(chunk), chunk.count(b"\n")) == (row["byte_size"], row["line_count"])
            assert row["state"] == "ready"
        for before, after in pairwise(rows):
            if before["stream"] == after["stream"] and before["attempt_id"] == after["attempt_id"]:
                assert before["stream_offset"] + before["raw_size"] == after["stream_offset"]
