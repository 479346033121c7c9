"""The provider of the spans of requests, which tells nothing that a caller chose.

FastAPI puts the path and the query as they came into the span of a request, and passes on the
vendor part of a trace's state. Either may hold a secret; the route's template and the trace's ids
say enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, ProxyTracerProvider, Span, SpanContext

_UNTOLD = frozenset({"url.path", "url.query", "http.request.method_original"})


def discreet_provider() -> trace.TracerProvider | None:
    """A provider over the configured one; None while none is, so that spans cost nothing."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, (ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return _Provider(provider)


class _Provider(trace.TracerProvider):
    def __init__(self, provider: trace.TracerProvider) -> None:
        self._provider = provider

    def get_tracer(self, *arguments: Any, **more: Any) -> trace.Tracer:
        return _Tracer(self._provider.get_tracer(*arguments, **more))


class _Tracer(trace.Tracer):
    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def start_span(  # type: ignore[override]
        self, name: str, context: Context | None = None, **more: Any
    ) -> Span:
        return self._tracer.start_span(name, _without_state(context), **_told(more))

    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, context: Context | None = None, **more: Any
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name, _without_state(context), **_told(more)
        ) as span:
            yield span


def _told(more: dict[str, Any]) -> dict[str, Any]:
    attributes = more.get("attributes") or {}
    kept = {name: value for name, value in attributes.items() if name not in _UNTOLD}
    return {**more, "attributes": kept}


def _without_state(context: Context | None) -> Context | None:
    """The same parent, by its ids alone."""
    parent = trace.get_current_span(context).get_span_context()
    if not parent.is_valid or not parent.trace_state:
        return context
    bare = SpanContext(parent.trace_id, parent.span_id, parent.is_remote, parent.trace_flags)
    return trace.set_span_in_context(NonRecordingSpan(bare), context)
