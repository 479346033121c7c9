"""What the tests of retention do and look at."""

import base64
import hashlib
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx

from app.commands.buckets import MARKER
from app.loops.drop_partitions import DropPartitions
from app.loops.loop import Loop, Result
from app.loops.make_partitions import MakePartitions
from app.loops.mark_bucket import MarkBucket
from app.loops.remove_expired import RemoveExpired
from app.services import Services
from app.store import partitions
from tests.driver import Held
from tests.lifecycle import world as lifecycle
from tests.lifecycle.clock import Clock


class World(lifecycle.World):
    """The service and everybody who calls it, with a clock that a test may move."""

    def __init__(self, services: Services, control, operator, make_runner, sql, clock: Clock):
        super().__init__(services, control, operator, make_runner, sql)
        self.clock = clock

    async def run(self, loop: Loop) -> Result:
        return await loop.run_once(self.services)

    async def make_partitions(self) -> int:
        return (await self.run(MakePartitions())).done

    async def drop_partitions(self) -> int:
        return (await self.run(DropPartitions())).done

    async def names(self, parent: str = "attempt_heartbeats") -> list[str]:
        """The attached partitions, those half detached among them."""
        rows = await self.sql.fetch(
            "SELECT inhrelid::regclass::text AS name FROM pg_inherits "
            "WHERE inhparent = $1::regclass ORDER BY 1",
            parent,
        )
        return [row["name"] for row in rows]

    async def add_days(self, first: int, last: int) -> list[str]:
        """Partitions from so many days ago on: days of heartbeats, and the months around them."""
        before = set(await self.names())
        now = self.clock.now
        async with self.sql.transaction():
            for days in range(first, last - 1, -1):
                day = (now - timedelta(days=days)).date()
                for parent, suffix, start, end in (
                    ("attempt_heartbeats", f"{day:%Y%m%d}", day, day + timedelta(days=1)),
                    (
                        "attempt_events",
                        f"{day:%Y%m}",
                        day.replace(day=1),
                        partitions.next_month(day),
                    ),
                ):
                    if await self.sql.fetchval(
                        "SELECT to_regclass($1) IS NULL", f"{parent}_{suffix}"
                    ):
                        await partitions._make(self.sql, parent, suffix, start, end)
        return sorted(set(await self.names()) - before)

    # --- objects ---

    async def artifact(
        self,
        attempt_id: str,
        *,
        days_old: float = 0,
        retention_class: str = "normal",
        key: str | None = None,
        body: bytes = b"a body",
        **columns: Any,
    ) -> UUID:
        """An artifact with its object, recorded so many days ago. A known key: a shared object."""
        artifact_id = uuid4()
        key = key or f"artifacts/{artifact_id}"
        digest = hashlib.sha256(body)
        await self.services.objects.put(key, body, base64.b64encode(digest.digest()).decode())
        values = {
            "id": artifact_id,
            "storage": "s3",
            "bucket": self.services.settings.objects.bucket,
            "key": self.services.objects.full_key(key),
            "content_type": "text/plain",
            "digest": f"sha256:{digest.hexdigest()}",
            "byte_size": len(body),
            "retention_class": retention_class,
            "created_at": self.clock.now - timedelta(days=days_old),
            "attempt_id": UUID(attempt_id),
            "operation_id": (await self.row(attempt_id))["operation_id"],
            "state": "ready",
            **columns,
        }
        await self._insert("artifact_refs", values)
        return artifact_id

    async def output(self, attempt_id: str, artifact_id: UUID) -> UUID:
        output_id = uuid4()
        await self._insert(
            "runner_output_refs",
            {
                "id": output_id,
                "attempt_id": UUID(attempt_id),
                "name": output_id.hex,
                "output_type": "text",
                "artifact_ref_id": artifact_id,
                "digest": "sha256:" + "0" * 64,
                "created_at": self.clock.now,
            },
        )
        return output_id

    async def evidence(self, attempt_id: str, **columns: Any) -> None:
        await self._insert(
            "evidence_refs",
            {
                "id": uuid4(),
                "attempt_id": UUID(attempt_id),
                "evidence_type": "probe",
                "status": "passed",
                "subject_ref": "host",
                "recorded_at": self.clock.now,
                "request_id": uuid4(),
                **columns,
            },
        )

    async def ticket(self, held: Held, key: str, **columns: Any) -> UUID:
        """An open ticket of this lease for that key."""
        ticket_id = uuid4()
        await self._insert(
            "artifact_uploads",
            {
                "id": ticket_id,
                "attempt_id": UUID(held.attempt_id),
                "operation_id": uuid4(),
                "lease_id": UUID(held.id),
                "request_id": uuid4(),
                "storage": "s3",
                "bucket": self.services.settings.objects.bucket,
                "key": self.services.objects.full_key(key),
                "content_type": "text/plain",
                "digest": "sha256:" + "0" * 64,
                "byte_size": 1,
                "retention_class": "normal",
                "method": "single",
                "created_at": self.clock.now,
                **columns,
            },
        )
        return ticket_id

    async def _insert(self, table: str, values: dict[str, Any]) -> None:
        places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        await self.sql.execute(
            f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", *values.values()
        )

    async def ended(self, *logs: bytes) -> str:
        """An attempt that ended after it wrote this log."""
        held = await self.running()
        offset = 0
        for piece in logs:
            answer = await held.log(piece, offset)
            assert answer.status_code == 200, answer.text
            offset = answer.json()["next_offset"]
        assert (await held.complete()).status_code == 200
        return held.attempt_id

    async def keys(self) -> set[str]:
        """The objects in the bucket, without the marker."""
        found, after = set(), None
        while page := await self.services.objects.list_objects("", after=after):
            found |= {one.key.removeprefix(self.services.settings.objects.prefix) for one in page}
            after = page[-1].key
        return found - {MARKER}

    async def artifacts(self) -> dict[UUID, str]:
        """State by id."""
        rows = await self.sql.fetch("SELECT id, state FROM artifact_refs")
        return {row["id"]: row["state"] for row in rows}

    async def mark_bucket(self) -> None:
        await self.run(MarkBucket())

    async def remove_expired(self) -> int:
        """All that has expired goes; how many rows did."""
        loop, removed = RemoveExpired(), 0
        while True:
            result = await self.run(loop)
            removed += result.done
            if not result.more:
                return removed

    async def hold(
        self, what: str, *, held: bool = True, reason: str = "case 17"
    ) -> httpx.Response:
        """`what`: `artifacts/<id>` or `attempts/<id>`."""
        verb = "hold" if held else "unhold"
        return await self.operator.call("POST", f"/v1/{what}:{verb}", json={"reason": reason})

    async def preview(self) -> dict[str, Any]:
        answer = await self.operator.call("POST", "/v1/retention:preview")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def one_beat(self, held: Held, **fields: Any) -> None:
        answer = await held.beat(**fields)
        assert answer.status_code == 200, answer.text


async def waiting_for_locks(sql: asyncpg.Connection) -> list[str]:
    """What waits for a lock in this database just now, by its query."""
    rows = await sql.fetch(
        "SELECT query FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'"
    )
    return [row["query"] for row in rows]
