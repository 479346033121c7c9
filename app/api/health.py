"""Liveness, readiness and metrics, without a token: they tell nothing that is not harmless."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.api.identity import services_of
from app.domain.errors import ServiceError
from app.store import callbacks, dead_letters, feed, gauges
from app.store.feed import Holder
from app.store.scheduler_gauges import show_scheduler

router = APIRouter(tags=["health"])

_FELT_SECONDS = 1


@router.get("/livez", name="health_live")
async def live() -> dict[str, str]:
    """The process answers. Says nothing about its surroundings."""
    return {"status": "ok"}


@router.get(
    "/readyz", name="health_ready", responses={503: {"description": "Not ready; says why."}}
)
async def ready(request: Request) -> Response:
    """The process can do its work: database migrated, bucket there, masking possible, not stopping.

    Also shows the age of the last sweep anywhere, so that a missing scheduler is seen, and what
    holds the feed back.
    """
    services = services_of(request)
    checks: dict[str, str] = {}
    if request.app.state.draining.is_set():
        checks["process"] = "stopping"
    sweep_age: float | None = None
    holder: Holder | None = None
    try:
        state = await services.database.run(gauges.readiness)
        sweep_age = state.sweep_age_seconds
        wanted = request.app.state.schema_head
        holder = await services.database.run(feed.horizon)
        checks["database"] = (
            "ok" if state.revision == wanted else "not migrated: run execution-plane migrate"
        )
    except ServiceError as error:
        checks["database"] = error.reason()
    try:
        await services.objects.check()
        checks["objects"] = "ok"
    except ServiceError as error:
        checks["objects"] = error.reason()
    checks["masking"] = "ok" if services.masker.prepare().usable else "no engine: all is withheld"
    good = all(value == "ok" for value in checks.values())
    body = {
        "status": "ok" if good else "not-ready",
        "checks": checks,
        "last_sweep_age_seconds": sweep_age,
        "feed_held_back": _told(holder),
    }
    return JSONResponse(body, 200 if good else 503)


def _told(holder: Holder | None) -> dict[str, object] | None:
    """The transaction that holds the feed back, once that can be felt."""
    if holder is None or (holder.age_seconds or 0) < _FELT_SECONDS:
        return None
    return {
        "seconds": holder.age_seconds,
        "by": f"{holder.kind} {holder.name}",
        "database": holder.database,
        "state": holder.state,
        "statement": holder.statement,
    }


@router.get("/metrics", name="health_metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus. The gauges of the queue are read from the database at each scrape."""
    services = services_of(request)
    services.metrics.database_connections.set(services.database.in_use)
    try:
        levels = await services.database.run(gauges.levels)
        gauges.show(services.metrics, levels)
        letters = await services.database.run(dead_letters.count_open)
        holder = await services.database.run(feed.horizon)
        age = holder.age_seconds if holder else None
        services.metrics.feed_horizon_age_seconds.set(age or 0)
        services.metrics.dead_letters_open.clear()
        for reason, count in letters.items():
            services.metrics.dead_letters_open.labels(reason).set(count)
        await services.database.run(lambda conn: show_scheduler(conn, services.metrics))
        states, parked = await services.database.run(callbacks.levels)
        for state in ("active", "failing", "paused"):
            services.metrics.callback_subscriptions.labels(state).set(states.get(state, 0))
        services.metrics.callback_parked.set(parked)
    except ServiceError:
        pass  # the counters are told all the same; the database's absence is a metric elsewhere
    return Response(generate_latest(services.metrics.registry), media_type=CONTENT_TYPE_LATEST)
