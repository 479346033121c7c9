"""The span of a request, which tells nothing that a caller chose.

A path and a query as they came may hold a secret, and so may the vendor part of a trace's state or
its baggage: the route's template, the status and the trace's ids say enough.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import Scope

from app.telemetry import TRACER

_PROPAGATOR = TraceContextTextMapPropagator()
_SERVER_FAULT = 500


def begin(scope: Scope) -> Span:
    """Begin the span of an HTTP request; `end` names it, once its route is known."""
    return TRACER.start_span(
        f"HTTP {scope['method']}",
        _parent(Headers(scope=scope)),
        SpanKind.SERVER,
        {
            "http.request.method": scope["method"],
            "url.scheme": scope.get("scheme", "http"),
            "network.protocol.version": scope.get("http_version", "1.1"),
        },
    )


def end(span: Span, method: str, route: str, status: int) -> None:
    """End it with what is known by now. A status of 0: there was no answer."""
    span.update_name(f"{method} {route}")
    span.set_attribute("http.route", route)
    span.set_attribute("http.response.status_code", status)
    if status == 0 or status >= _SERVER_FAULT:
        span.set_status(trace.StatusCode.ERROR)
    span.end()


def _parent(headers: Mapping[str, str]) -> Context:
    """The caller's span, by its ids alone."""
    context = _PROPAGATOR.extract({"traceparent": headers.get("traceparent", "")})
    parent = trace.get_current_span(context).get_span_context()
    bare = SpanContext(parent.trace_id, parent.span_id, parent.is_remote, parent.trace_flags)
    return trace.set_span_in_context(NonRecordingSpan(bare), context)
