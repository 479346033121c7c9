"""Every handler of this service: a new module is one line here."""

from __future__ import annotations

from app.handlers import attempts, leases, logs, recordings, runners
from app.handlers.registry import Registry


def build() -> Registry:
    """A registry with all handlers."""
    registry = Registry()
    for module in (attempts, runners, leases, logs, recordings):
        module.register(registry)
    return registry
