"""Who calls, and in which role. Declared per router, decided before any body is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from fastapi.routing import APIRoute
from starlette.requests import Request

from app.api.bodies import pointer
from app.auth.roles import Identity
from app.domain.errors import Forbidden, RequestInvalid, Unauthenticated
from app.services import Services
from app.settings import Role


def services_of(request: Request) -> Services:
    """The process's services."""
    return cast("Services", request.app.state.services)


async def authenticate(request: Request) -> Identity:
    """The caller, by the Authorization header alone. Raises Unauthenticated or Forbidden."""
    services = services_of(request)
    try:
        identity = await services.tokens.verify(request.headers.getlist("authorization"))
    except Unauthenticated as error:
        services.metrics.refused_identities.labels(error.cause).inc()
        raise
    except Forbidden as error:
        services.metrics.refused_identities.labels(error.context["cause"]).inc()
        raise
    request.state.identity = identity
    return identity


def require(*roles: Role) -> Callable[[Request], Awaitable[None]]:
    """A dependency: the caller must have one of these roles."""

    async def check(request: Request) -> None:
        identity = await authenticate(request)
        identity.require(*roles)
        _refuse_unknown_parameters(request)

    return check


def _refuse_unknown_parameters(request: Request) -> None:
    """A misspelt filter must not be ignored: the answer would be another one than was asked for."""
    if not request.scope["query_string"] or not request.query_params:
        return
    route = cast("APIRoute", request.scope["route"])
    known = {field.alias for field in route.dependant.query_params}
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        detail = f"is no parameter here; known are: {', '.join(sorted(known)) or 'none'}"
        raise RequestInvalid(
            [{"pointer": pointer(("query", name)), "detail": detail} for name in unknown]
        )


def speaks_for(request: Request, runner_id: str) -> None:
    """Refuse an identity that is bound to other runner ids. Operators speak for none."""
    identity: Identity = request.state.identity
    if not identity.may_speak_for(runner_id):
        raise Forbidden("This identity is bound to other runner ids.")
