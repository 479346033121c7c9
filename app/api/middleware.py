"""What surrounds every request: its id, one log line, its metrics, and no 500 without a reason."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import structlog
from opentelemetry import trace
from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import failpoints
from app.api import spans
from app.api.problems import plain_problem
from app.domain.ids import new_id
from app.telemetry import Metrics, is_tracing

_LOG = structlog.get_logger("access")
_UNTOLD = frozenset({"/livez", "/readyz", "/metrics"})
_BAD_REQUEST = 400


class RequestContext:
    """Pure ASGI: one object a request, nothing buffered."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, *, access_log: bool, share: float = 1.0
    ) -> None:
        """`app`: what is surrounded; `share`: of the good requests, how many have a line."""
        self._app = app
        self._in_flight = metrics.in_flight
        self._metrics = lru_cache(maxsize=2000)(lambda *of: _children(metrics, *of))
        self._access_log = access_log
        self._share = share
        self._told = {} if share == 1 else {"share": share}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. An exception nobody foresaw is logged and answered as a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id().hex
        scope.setdefault("state", {})["request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        began = time.perf_counter()
        span = spans.begin(scope) if is_tracing() else None
        status = 0

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"request-id", request_id.encode()))
            await send(message)

        self._in_flight.inc()
        try:
            if span is None:
                await self._app(scope, receive, tell)
            else:
                with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                    await self._app(scope, receive, tell)
        except failpoints.AnswerDropped:
            # A head that promises a body, and then nothing: the client sees a torn connection.
            head = [(b"content-length", b"1000")]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            raise RuntimeError("the answer was dropped on purpose") from None
        except Exception:
            structlog.get_logger(__name__).exception("request.failed")
            if status:
                raise
            response = plain_problem(
                500, "internal", "This should not have happened; it was logged.", request_id
            )
            await response(scope, receive, tell)
        finally:
            self._in_flight.dec()
            method, route = scope["method"], _route_of(scope)
            if span is not None:
                spans.end(span, method, route, status)
            seconds = time.perf_counter() - began
            requests, request_seconds = self._metrics(method, route, status)
            requests.inc()
            request_seconds.observe(seconds)
            if self._access_log and self._is_chosen(request_id, status):
                self._log(method, route, status, seconds)

    def _is_chosen(self, request_id: str, status: int) -> bool:
        """Whether this request has a line; by the random end of its id, so that all agree on it."""
        good = 0 < status < _BAD_REQUEST
        return not good or int(request_id[-8:], 16) < self._share * 2**32

    def _log(self, method: str, route: str, status: int, seconds: float) -> None:
        if route not in _UNTOLD:
            milliseconds = round(seconds * 1000, 1)
            told = self._told if 0 < status < _BAD_REQUEST else {}
            _LOG.info("request", method=method, route=route, status=status, ms=milliseconds, **told)


def _children(metrics: Metrics, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
    return (
        metrics.requests.labels(method, route, str(status)),
        metrics.request_seconds.labels(method, route),
    )


def _route_of(scope: Scope) -> str:
    """The route's template: a path as it came would be a label of a stranger's choosing."""
    route: Any = scope.get("route")
    path = getattr(route, "path", None)
    return path if isinstance(path, str) else "none"
