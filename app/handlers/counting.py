"""Counts every command by its outcome, whichever way it came."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app.domain.errors import ServiceError
from app.telemetry import TRACER, Metrics


@contextmanager
def counted(metrics: Metrics, command: str) -> Iterator[None]:
    """Count one command as ok, by the reason of its refusal, or as an error; one span around it."""
    # Without the words of an exception: a driver's repeat the value that it could not store.
    with TRACER.start_as_current_span(
        command, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield
        except ServiceError as error:
            metrics.commands.labels(command, error.reason()).inc()
            raise
        except Exception:
            metrics.commands.labels(command, "error").inc()
            raise
        metrics.commands.labels(command, "ok").inc()
