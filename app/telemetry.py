"""Logs, metrics and traces: one place that sets them up, names used everywhere.

Every log line carries the ids that the context holds (`request_id`, `envelope_id`, `trace_id`).
Traces are switched by the standard `OTEL_*` variables; without an exporter they cost nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import orjson
import structlog
from opentelemetry import trace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SERVICE_NAME = "execution-plane"
TRACER = trace.get_tracer(SERVICE_NAME)
_TRACING = threading.Event()


def is_tracing() -> bool:
    """Whether anybody takes spans; where nobody does, none is begun."""
    return _TRACING.is_set()


def use_tracer_provider(provider: trace.TracerProvider) -> None:
    """Give all spans of this process to this provider, once and for ever."""
    trace.set_tracer_provider(provider)
    _TRACING.set()


def span(name: str) -> AbstractContextManager[object]:
    """A span around what follows, without the words of an exception.

    A driver's repeat the value that it could not store.
    """
    if not is_tracing():
        return nullcontext()
    return TRACER.start_as_current_span(name, record_exception=False, set_status_on_exception=False)


# Never with local variables: they hold tokens and bodies.
_TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


class Metrics:
    """The metrics of one process, in a registry of its own."""

    def __init__(self) -> None:
        """All metrics exist from the start, so that a scrape shows zeros and not gaps."""
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "execution_plane_requests",
            "HTTP requests by route and status.",
            ["method", "route", "status"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "execution_plane_request_seconds",
            "Duration of HTTP requests; long polls apart.",
            ["method", "route"],
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self.in_flight = Gauge(
            "execution_plane_requests_in_flight", "Requests being answered.", registry=registry
        )
        self.commands = Counter(
            "execution_plane_commands",
            "Commands by name and outcome.",
            ["command", "outcome"],
            registry=registry,
        )
        self.batches = Histogram(
            "execution_plane_batch_size",
            "Commands of concurrent requests that shared one transaction, by command.",
            ["command"],
            registry=registry,
            buckets=(1, 2, 4, 8, 16, 32, 64),
        )
        self.pushes = Counter(
            "execution_plane_pushes",
            "Push deliveries by handler and outcome.",
            ["handler", "outcome"],
            registry=registry,
        )
        self.refused_identities = Counter(
            "execution_plane_identities_refused",
            "Requests without an acceptable identity, by cause.",
            ["cause"],
            registry=registry,
        )
        self.attempts = Gauge(
            "execution_plane_attempts",
            "Attempts that have not ended, by runner kind and status.",
            ["runner_kind", "status"],
            registry=registry,
        )
        self.oldest_queued_seconds = Gauge(
            "execution_plane_oldest_queued_seconds",
            "Age of the oldest queued attempt, by runner kind.",
            ["runner_kind"],
            registry=registry,
        )
        self.active_leases = Gauge(
            "execution_plane_leases_active",
            "Active leases by runner kind.",
            ["runner_kind"],
            registry=registry,
        )
        self.leases_ended = Counter(
            "execution_plane_leases_ended",
            "Leases that ended without their runner's completion, by word and consequence.",
            ["status", "consequence"],
            registry=registry,
        )
        self.dead_letters = Counter(
            "execution_plane_dead_letters",
            "Messages recorded as dead letters, by reason.",
            ["reason"],
            registry=registry,
        )
        self.dead_letters_closed = Counter(
            "execution_plane_dead_letters_closed",
            "Dead letters that an operator redrove or discarded, and redrives that failed.",
            ["outcome"],
            registry=registry,
        )
        self.dead_letters_open = Gauge(
            "execution_plane_dead_letters_open",
            "Dead letters that nobody has redriven or discarded, by reason.",
            ["reason"],
            registry=registry,
        )
        self.connections_refused = Counter(
            "execution_plane_connections_refused",
            "Connections closed for being silent, slow, too large or too many, by cause.",
            ["cause"],
            registry=registry,
        )
        self.secrets_masked = Counter(
            "execution_plane_secrets_masked",
            "Secrets that were masked before anything was stored, by where they came and kind.",
            ["source", "kind"],
            registry=registry,
        )
        self.callback_deliveries = Counter(
            "execution_plane_callback_deliveries",
            "Requests to receivers of callbacks, by why they were made and how they ended.",
            ["kind", "result"],
            registry=registry,
        )
        self.callback_seconds = Histogram(
            "execution_plane_callback_seconds",
            "Time until a receiver had answered, or was given up.",
            buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self.callback_pauses = Counter(
            "execution_plane_callback_pauses",
            "Callback subscriptions that paused, by cause.",
            ["cause"],
            registry=registry,
        )
        self.callback_subscriptions = Gauge(
            "execution_plane_callback_subscriptions",
            "Callback subscriptions that are well, failing or paused.",
            ["state"],
            registry=registry,
        )
        self.callback_parked = Gauge(
            "execution_plane_callback_parked",
            "Attempts that wait apart because a receiver refused one of their events.",
            registry=registry,
        )
        self.log_bytes = Counter(
            "execution_plane_log_bytes", "Log bytes stored.", registry=registry
        )
        self.database_connections = Gauge(
            "execution_plane_database_connections_in_use",
            "Connections of the pool that are busy.",
            registry=registry,
        )
        self.sweep_age_seconds = Gauge(
            "execution_plane_sweep_age_seconds",
            "Time since the last completed sweep anywhere, by loop.",
            ["loop"],
            registry=registry,
        )
        self.feed_horizon_age_seconds = Gauge(
            "execution_plane_feed_horizon_age_seconds",
            "Age of the oldest transaction that holds the feed back; `/readyz` names it.",
            registry=registry,
        )
        self.removed = Counter(
            "execution_plane_removed",
            "Things whose time was over and that this process removed, by kind.",
            ["kind"],
            registry=registry,
        )
        self.removals_refused = Counter(
            "execution_plane_removals_refused",
            "Objects that the store refused to delete; they are tried again.",
            registry=registry,
        )
        self.loop_runs = Counter(
            "execution_plane_loop_runs",
            "Passes of the loops of this process, by outcome.",
            ["loop", "outcome"],
            registry=registry,
        )
        self.loop_seconds = Histogram(
            "execution_plane_loop_seconds",
            "Duration of good passes of the loops of this process.",
            ["loop"],
            registry=registry,
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )
        self.loop_done = Counter(
            "execution_plane_loop_done",
            "Things that good passes of the loops of this process dealt with.",
            ["loop"],
            registry=registry,
        )
        self.sweep_lag_seconds = Gauge(
            "execution_plane_sweep_lag_seconds",
            "How far a sweep is behind anywhere: overdue, and the age of what it left due.",
            ["loop"],
            registry=registry,
        )
        self.sweep_failing = Gauge(
            "execution_plane_sweep_failing",
            "Failed passes of a sweep in a row, anywhere.",
            ["loop"],
            registry=registry,
        )
        self.leading = Gauge(
            "execution_plane_leading", "1 if this process leads the sweeps.", registry=registry
        )
        self.leader_alive = Gauge(
            "execution_plane_leader_alive",
            "1 if some process leads the sweeps by the database's clock.",
            registry=registry,
        )
        self.leader_term = Gauge(
            "execution_plane_leader_term",
            "The term of the leader; it grows with every election.",
            registry=registry,
        )
        self.schedules_fired = Counter(
            "execution_plane_schedules_fired",
            "Messages that schedules put into the outbox.",
            registry=registry,
        )
        self.outbox_sent = Counter(
            "execution_plane_outbox_sent",
            "Messages of the outbox that were sent.",
            registry=registry,
        )
        self.outbox_waiting = Gauge(
            "execution_plane_outbox_waiting",
            "Messages that wait in the outbox to be sent.",
            registry=registry,
        )
        self.outbox_oldest_seconds = Gauge(
            "execution_plane_outbox_oldest_seconds",
            "Age of the oldest message in the outbox.",
            registry=registry,
        )


def configure_logging(log_format: str, log_level: str) -> None:
    """Send all logs of the process, ours and libraries', to stdout in one format."""
    text = log_format == "text" or (log_format == "auto" and sys.stdout.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _add_trace_id,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    final: list[Any] = (
        [
            structlog.dev.ConsoleRenderer(
                colors=sys.stdout.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
        if text
        else [
            _TRACEBACKS,
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(_json),
        ]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(log_level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(log_level.upper())
    for noisy in ("aiobotocore", "botocore", "httpx", "httpcore", "asyncio", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _json(value: Any, **_: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def _add_trace_id(
    _logger: Any, _name: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = f"{context.trace_id:032x}"
        event["span_id"] = f"{context.span_id:016x}"
    return event


def configure_tracing(environ: MutableMapping[str, str] | None = None) -> bool:
    """Export spans over OTLP if the standard variables ask for it; True if they did.

    `OTEL_EXPORTER_OTLP_ENDPOINT` (or `…_TRACES_ENDPOINT`) switches it on, `OTEL_SDK_DISABLED`
    off; sampling is `OTEL_TRACES_SAMPLER`.
    """
    environ = os.environ if environ is None else environ
    wanted = any(
        environ.get(name)
        for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    )
    if not wanted or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    # Imported only when wanted: they take a quarter of a second at every start.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    resource = Resource.create({"service.name": environ.get("OTEL_SERVICE_NAME", SERVICE_NAME)})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    use_tracer_provider(provider)
    return True
