"""What happens around an attempt, in the words of those who do it: callers, runners, sweeps."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import httpx

from app.commands import audit
from app.loops.end_due import EndDue
from app.loops.keep_keys import KeepKeys
from app.loops.tick import Tick
from app.services import Services
from tests.driver import Caller, Control, Held, RunnerClient

ONCE = "ssh.command.run"
AGAIN = "verify.http"
"""A job that may be begun again after it had started, and one that may not."""

_KINDS = {"verify": "verification"}


class World:
    """The service, everybody who calls it, and what happens by itself when a test says so."""

    def __init__(
        self,
        services: Services,
        control: Control,
        operator: Caller,
        make_runner: Callable[..., RunnerClient],
        sql: asyncpg.Connection,
    ) -> None:
        self.services = services
        self.control = control
        self.operator = operator
        self.sql = sql
        self._make_runner = make_runner

    # --- callers ---

    async def create(self, job_type: str = ONCE, **fields: Any) -> str:
        """A new attempt's id."""
        return (await self.control.create(job_type=job_type, **fields))["id"]

    async def cancel(self, attempt_id: str, reason: str = "") -> httpx.Response:
        return await self.control.call(
            "POST", f"/v1/attempts/{attempt_id}:cancel", json={"reason": reason}
        )

    async def free(self, key: str) -> httpx.Response:
        body = {"reason": "looked at the host"}
        return await self.operator.call("POST", f"/v1/concurrency-keys/{key}:free", json=body)

    async def placement(self, attempt_id: str) -> dict[str, Any]:
        answer = await self.control.call("GET", f"/v1/attempts/{attempt_id}/placement")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def reasons(self, attempt_id: str) -> list[str]:
        return [one["reason"] for one in (await self.placement(attempt_id))["reasons"]]

    # --- runners ---

    async def runner(self, job_type: str = ONCE, **profile: Any) -> RunnerClient:
        """A registered runner that can do this job."""
        kind = job_type.split(".", 1)[0]
        profile = {
            "runner_kind": _KINDS.get(kind, kind),
            "capabilities": [f"{kind}.*"],
            "capacity_total": 100,
            **profile,
        }
        return await self._make_runner(**profile).register()

    async def leased(self, job_type: str = ONCE, **fields: Any) -> Held:
        """A lease of a new attempt, held by a runner of its own."""
        attempt_id = await self.create(job_type, **fields)
        held = await (await self.runner(job_type)).claim()
        assert held.attempt_id == attempt_id
        return held

    async def running(self, job_type: str = ONCE, **fields: Any) -> Held:
        """The same, started."""
        held = await self.leased(job_type, **fields)
        answer = await held.start()
        assert answer.status_code == 200, answer.text
        return held

    async def restart(self, runner: RunnerClient) -> RunnerClient:
        """A new process of the same runner."""
        return await self._make_runner(id=runner.id, **runner.profile).register()

    # --- what happens by itself ---

    async def sweep(self) -> int:
        """Everything that time has brought about ends; how many ends there were."""
        loop, ended = EndDue(), 0
        while True:
            result = await loop.run_once(self.services)
            ended += result.done
            if not result.more:
                return ended

    async def keep_keys(self) -> int:
        """How many holds were let go."""
        return (await KeepKeys().run_once(self.services)).done

    async def tick(self) -> None:
        await Tick().run_once(self.services)

    # --- what is stored ---

    async def row(self, attempt_id: str) -> asyncpg.Record:
        row = await self.sql.fetchrow(
            "SELECT * FROM execution_attempts WHERE id = $1", UUID(attempt_id)
        )
        assert row is not None
        return row

    async def end(self, attempt_id: str) -> tuple[str, str | None, bool | None]:
        """Status, category, and whether the stop is confirmed."""
        row = await self.row(attempt_id)
        return row["status"], row["failure_category"], row["stop_confirmed"]

    async def limit(self, attempt_id: str) -> Any:
        return (await self.row(attempt_id))["limit_at"]

    async def leases(self, attempt_id: str) -> list[str]:
        """How each of its leases stands, the first one first."""
        return [lease["status"] for lease in await self.control.list_of(attempt_id, "leases")]

    async def holder(self, key: str) -> str | None:
        found = await self.sql.fetchval(
            "SELECT attempt_id FROM concurrency_holds WHERE concurrency_key = $1", key
        )
        return None if found is None else str(found)

    async def audit(self) -> dict[str, list[tuple[str, str]]]:
        """What the auditor finds, by the check that found it."""
        terms = audit.Terms.of(self.services.settings.leases)
        return breaches(await audit.run_checks(self.sql, terms))


def breaches(findings: list[audit.Finding]) -> dict[str, list[tuple[str, str]]]:
    """The violations of the checks that found any."""
    return {
        finding.check.name: [(one.subject, one.detail) for one in finding.violations]
        for finding in findings
        if finding.violations
    }


def refusal(answer: httpx.Response) -> tuple[int, str, str | None]:
    """Status, reason and what the runner is told to do."""
    body = answer.json()
    return answer.status_code, body["reason"], body.get("action")


def new_key() -> str:
    """A concurrency key of nobody else."""
    return f"host-{uuid4().hex[:8]}"
