"""Schedules and their messages, in the verbs of the tests."""

from datetime import datetime
from typing import Any
from uuid import uuid4

import asyncpg
import httpx

from app.api.inside import Inside
from app.commands.audit import Terms, run_checks
from app.loops.fire_schedules import FireSchedules
from app.loops.loop import Result
from app.loops.send_outbox import SendOutbox
from app.services import Services
from tests.driver import Control, new_attempt
from tests.lifecycle.clock import Clock


def attempt_data(**fields: Any) -> dict[str, Any]:
    """What `attempt.create` gets from a schedule: everything but a key."""
    data = new_attempt(**fields)
    del data["idempotency_key"]
    return data


def a_schedule(**fields: Any) -> dict[str, Any]:
    """A schedule that creates an attempt at every full hour."""
    return {
        **({} if "at" in fields else {"cron": "0 * * * *"}),
        "to": "attempt.create",
        "data": attempt_data(),
        **fields,
    }


class World:
    """A leader, a clock and a caller."""

    def __init__(
        self,
        services: Services,
        clock: Clock,
        control: Control,
        inside: Inside,
        sql: asyncpg.Connection,
    ) -> None:
        self.services, self.clock, self.control = services, clock, control
        self.inside, self.sql = inside, sql

    async def at(self, moment: datetime) -> None:
        """Let it be that time; the leader has renewed."""
        self.clock.now = moment
        await self.clock.forward(0)
        held = self.services.leadership
        await self.sql.execute(
            "UPDATE leaders SET expires_at = clock_fact() + interval '10 s', "
            "renewed_at = clock_fact() WHERE holder = $1",
            held.holder,
        )

    async def try_put(self, name: str, **fields: Any) -> httpx.Response:
        return await self.control.call("PUT", f"/v1/schedules/{name}", json=a_schedule(**fields))

    async def put(self, name: str, **fields: Any) -> dict[str, Any]:
        answer = await self.try_put(name, **fields)
        assert answer.status_code in {200, 201}, answer.text
        return answer.json()

    async def get(self, name: str) -> dict[str, Any]:
        answer = await self.control.call("GET", f"/v1/schedules/{name}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, name: str, verb: str, **body: Any) -> httpx.Response:
        return await self.control.call("POST", f"/v1/schedules/{name}:{verb}", json=body)

    async def trigger(self, name: str, request_id: str | None = None) -> dict[str, Any]:
        answer = await self.post(name, "trigger", request_id=request_id or str(uuid4()))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def fires(self, name: str) -> list[dict[str, Any]]:
        """Its history, oldest due time first."""
        answer = await self.control.call("GET", f"/v1/schedules/{name}/fires?page_size=500")
        assert answer.status_code == 200, answer.text
        return sorted(answer.json()["items"], key=lambda fire: fire["due_at"])

    async def fire(self) -> Result:
        return await FireSchedules().run_once(self.services)

    async def send(self) -> Result:
        return await SendOutbox(self.inside.deliver).run_once(self.services)

    async def attempts(self) -> list[asyncpg.Record]:
        return await self.sql.fetch(
            "SELECT id, idempotency_key, job_spec_ref FROM execution_attempts ORDER BY created_at"
        )

    async def audit(self) -> dict[str, list[str]]:
        """What an auditor finds broken."""
        findings = await run_checks(self.sql, Terms.of(self.services.settings.leases))
        return {
            one.check.name: [str(found) for found in one.violations]
            for one in findings
            if one.violations
        }
