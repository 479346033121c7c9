"""The short way to the busiest routes: matched, admitted and answered without FastAPI's machinery.

FastAPI declares and documents these routes as it does all others, and still serves whatever is
unusual about a request to them (a query, a path that does not fit, a method in vain), so that
there is one set of rules and one set of answers. What is left out is what these routes do not use:
the walk over all routes, the solving of dependencies, and three stacks of clean-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from app.api.problems import problem
from app.domain.errors import ServiceError

if TYPE_CHECKING:
    from fastapi._compat import ModelField

_VERB = re.compile(r"[a-z]+")


class HotRoute(APIRoute):
    """A route that takes nothing but the request, parts of its path, and headers.

    Its dependencies are functions of the request that admit or raise, and its endpoint returns
    the response. One that takes more is served by FastAPI alone.
    """

    @property
    def is_hot(self) -> bool:
        """Whether there is a short way to it: by its whole path, or by the verb that ends it."""
        known = self.dependant
        plain = not (known.query_params or known.cookie_params or known.body_params)
        return plain and (not known.path_params or self.verb is not None)

    @property
    def verb(self) -> str | None:
        """What stands behind the colon at the end of its path."""
        verb = _verb(self.path)
        return verb if _VERB.fullmatch(verb) else None

    def arguments(self, scope: Scope) -> dict[str, Any] | None:
        """What the endpoint is called with; None where FastAPI has to say what is wrong."""
        matched = self.path_regex.match(scope["path"])
        if matched is None:
            return None
        known = self.dependant
        given: list[tuple[ModelField, str | None]] = [
            (field, matched[field.alias]) for field in known.path_params
        ]
        if known.header_params:
            headers = Headers(scope=scope)
            given += [(field, headers.get(field.alias)) for field in known.header_params]
        values: dict[str, Any] = {}
        for field, text in given:
            if text is not None:
                values[field.name], faults = field.validate(text, {}, loc=(field.alias,))
                if faults:
                    return None
        return values


class HotPaths:
    """Finds the hot routes among all, and serves requests to them."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        """A path that two of them fit is served by the first, as it is by FastAPI."""
        self._exact: dict[tuple[str, str], HotRoute] = {}
        self._by_verb: dict[tuple[str, str], list[HotRoute]] = {}
        for route in routes:
            if not isinstance(route, HotRoute) or not route.is_hot:
                continue
            for method in route.methods or ():
                if not route.dependant.path_params:
                    self._exact.setdefault((method, route.path), route)
                else:
                    self._by_verb.setdefault((method, route.verb or ""), []).append(route)

    def find(self, scope: Scope) -> bool:
        """Whether this request goes the short way; the scope then tells `__call__` where."""
        if scope["type"] != "http" or scope["query_string"]:
            return False
        method, path = scope["method"], scope["path"]
        exact = self._exact.get((method, path))
        for route in (exact,) if exact else self._by_verb.get((method, _verb(path)), ()):
            arguments = route.arguments(scope)
            if arguments is not None:
                scope["route"], scope["path_params"] = route, arguments
                return True
        return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that was found."""
        route: HotRoute = scope["route"]
        request = Request(scope, receive)
        try:
            for dependency in route.dependencies:
                await cast("Any", dependency.dependency)(request)
            response = await route.endpoint(request, **scope["path_params"])
        except ServiceError as error:
            response = problem(error, str(getattr(request.state, "request_id", "")))
        await response(scope, receive, send)


def _verb(path: str) -> str:
    """What stands behind the last colon."""
    return path[path.rfind(":") + 1 :]
