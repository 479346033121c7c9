"""The HTTP application: routers, problem handlers, middleware, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import (
    artifacts,
    batches,
    callbacks,
    control,
    dead_letters,
    events,
    health,
    log_reads,
    logs,
    operator,
    push,
    retention,
    runner,
    scheduler,
    schedules,
)
from app.api.bodies import pointer
from app.api.dispatch import Dispatcher
from app.api.docs import add_docs
from app.api.hot import HotPaths
from app.api.middleware import RequestContext
from app.api.openapi import document
from app.api.problems import plain_problem, problem
from app.domain.errors import RequestInvalid, ServiceError
from app.handlers import all_handlers
from app.handlers.registry import Registry
from app.services import Services
from app.store import revision

_ROUTERS = (
    batches.control,
    batches.runner,
    control.router,
    events.router,
    log_reads.router,
    operator.reads,
    operator.writes,
    callbacks.router,
    dead_letters.router,
    retention.router,
    schedules.router,
    scheduler.router,
    runner.router,
    artifacts.writes,
    artifacts.reads,
    logs.router,
    push.router,
)
_REASONS = {404: "not-found", 405: "method-not-allowed"}


def version() -> str:
    """The version of this program."""
    try:
        return installed_version("execution-plane-service")
    except PackageNotFoundError:
        return "0.1.0"


class Application(FastAPI):
    """FastAPI, with the short way past it for the busiest routes."""

    def shorten(self, hot: HotPaths, surround: Callable[[ASGIApp], ASGIApp]) -> None:
        """Serve what is hot by the short way, surrounded as all the rest is."""
        self._hot = hot
        self._surrounded = surround(hot)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if self._hot.find(scope):
            scope["app"] = self
            await self._surrounded(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(services: Services, registry: Registry | None = None) -> FastAPI:
    """The application over these services. `registry` replaces the handlers, for tests."""
    app = Application(
        title="execution-plane-service",
        version=version(),
        description=(
            "The record of every technical execution: which attempt was created, which runner "
            "holds its lease, is it alive, how did it end, where are its logs."
        ),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # ours are in middleware.py
    )
    app.state.services = services
    app.state.registry = registry or all_handlers.build()
    app.state.dispatcher = Dispatcher(services, app.state.registry)
    app.state.in_flight = push.InFlight(services.settings.push)
    app.state.draining = asyncio.Event()
    app.state.schema_head = revision.HEAD
    # One that only runs loops answers for its health alone.
    routers = [] if services.settings.role == "scheduler" else _ROUTERS
    for router in routers:
        app.include_router(router)
    app.include_router(health.router)
    add_docs(app)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(HTTPException, _http_error)
    app.openapi = lambda: document(app, version())  # type: ignore[method-assign]
    surround = partial(
        RequestContext,
        metrics=services.metrics,
        access_log=services.settings.telemetry.access_log,
        share=services.settings.telemetry.access_log_share,
    )
    app.add_middleware(surround)
    app.shorten(HotPaths(route for router in routers for route in router.routes), surround)
    return app


def _request_id(request: Request) -> str:
    return str(getattr(request.state, "request_id", ""))


async def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)  # noqa: S101 - registered for it
    return problem(error, _request_id(request))


async def _invalid_parameters(request: Request, error: Exception) -> Response:
    """Path, query and header parameters; bodies are validated by `api/bodies.py`."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    faults = [
        {"pointer": pointer(tuple(fault["loc"])), "detail": fault["msg"]}
        for fault in error.errors()
    ]
    return problem(RequestInvalid(faults), _request_id(request))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    reason = _REASONS.get(error.status_code, "refused")
    return plain_problem(
        error.status_code, reason, str(error.detail), _request_id(request), error.headers
    )
