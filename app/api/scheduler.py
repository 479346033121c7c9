"""The route that tells who runs the sweeps, and how they are doing."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from app.api.answers import answer
from app.api.identity import require, services_of
from app.api.schemas.schedules import Leader, LeaderTerm, Outbox, Scheduler, SweepReport
from app.store import leaders, outbox, sweeps
from app.store.database import Connection

_TERMS = 20

router = APIRouter(
    prefix="/v1",
    tags=["schedules"],
    dependencies=[Depends(require("control-plane", "operator"))],
)


@router.get("/scheduler", name="scheduler_get", response_model=Scheduler)
async def get_scheduler(request: Request) -> Response:
    """Read who leads the sweeps, since when, and how each sweep is doing.

    It is kept in the database, so every instance gives the same answer.
    """
    return answer(await services_of(request).database.run(_read))


async def _read(conn: Connection) -> Scheduler:
    held = await leaders.find(conn, leaders.SCHEDULER)
    leader = None
    if held is not None and held.alive:
        leader = Leader.model_validate({**asdict(held), "since": held.elected_at})
    terms = await leaders.list_terms(conn, leaders.SCHEDULER, _TERMS)
    return Scheduler(
        leader=leader,
        sweeps=[SweepReport.model_validate(asdict(one)) for one in await sweeps.list_all(conn)],
        outbox=Outbox.model_validate(asdict(await outbox.backlog(conn))),
        terms=[LeaderTerm.model_validate(asdict(one)) for one in terms],
    )
