"""The span of a pushed message, and what may be said of a handler's failure.

Neither an exception's words nor anything that a message holds goes into a span or a log line: a
driver's error, for one, repeats the value that it could not store.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.telemetry import TRACER

_W3C = TraceContextTextMapPropagator()
_PREFIXES = ("googclient_", "")
_MAX_FRAMES = 12


def parent_of(attributes: Mapping[str, str]) -> Context | None:
    """The W3C trace context that a message's attributes carry; None if they carry no valid one.

    Google's client libraries write theirs under names of their own, which are looked at first.
    """
    for prefix in _PREFIXES:
        carrier = {
            name: attributes[prefix + name]
            for name in ("traceparent", "tracestate")
            if prefix + name in attributes
        }
        context = _W3C.extract(carrier, Context())
        if trace.get_current_span(context).get_span_context().is_valid:
            return context
    return None


@contextmanager
def message_span(
    handler: str, attributes: Mapping[str, str], envelope_id: str | None, message_id: str
) -> Iterator[Span]:
    """The span of one message, a child of its publisher's where the attributes name that."""
    facts = {
        "messaging.system": "gcp_pubsub",
        "messaging.operation.type": "process",
        "messaging.message.id": message_id,
        "execution_plane.handler": handler,
    }
    if envelope_id is not None:
        facts["execution_plane.envelope_id"] = envelope_id
    with TRACER.start_as_current_span(
        f"process {handler}",
        context=parent_of(attributes),
        kind=SpanKind.CONSUMER,
        attributes=facts,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield span


def tell_outcome(span: Span, word: str, reason: str | None) -> None:
    """Note what became of the message, by our own words."""
    span.set_attribute("execution_plane.outcome", word)
    if reason is not None:
        span.set_attribute("error.type", reason)
        span.set_status(Status(StatusCode.ERROR, reason))


def form_of(error: BaseException) -> dict[str, Any]:
    """What an exception was and where it was raised, without a word of what it says."""
    frames = traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
    found: dict[str, Any] = {
        "error": type(error).__name__,
        "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate:
        found["sqlstate"] = sqlstate
    if error.__cause__ is not None:
        found["cause"] = type(error.__cause__).__name__
    return found
