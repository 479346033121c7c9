"""Counts every command by its outcome, whichever way it came."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app.domain.errors import ServiceError
from app.telemetry import Metrics, span


@contextmanager
def counted(metrics: Metrics, command: str) -> Iterator[None]:
    """Count one command as ok, by the reason of its refusal, or as an error; one span around it."""
    with span(command):
        try:
            yield
        except ServiceError as error:
            metrics.commands.labels(command, error.reason()).inc()
            raise
        except Exception:
            metrics.commands.labels(command, "error").inc()
            raise
        metrics.commands.labels(command, "ok").inc()
