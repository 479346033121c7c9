"""The explicit list of what an envelope's `to` may name.

A handler is one function: `@registry.handler("name", Model)`. Its context has the services, the
envelope and, unless it is idempotent by a key of its own, the transaction in which its effects and
the note that the message is done commit together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

from app.domain.commands import Command
from app.domain.envelope import Envelope
from app.services import Services
from app.store.database import Connection

C = TypeVar("C", bound=Command)
Prepare = Callable[[Mapping[str, Any], str], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler works with."""

    services: Services
    envelope: Envelope
    as_sent: Mapping[str, Any]
    """The envelope's data after `prepare`, before defaults: what digests are made of."""
    published_at: datetime | None
    logger: FilteringBoundLogger
    connection: Connection | None
    """The open transaction; None for a handler that is idempotent by a key of its own."""


@dataclass(frozen=True, slots=True)
class Handler:
    """One entry: a name, the model of its data and the function."""

    name: str
    model: type[Command]
    run: Callable[[Context, Any], Awaitable[None]]
    idempotent_by: str | None
    prepare: Prepare | None = None


class Registry:
    """Handlers by name."""

    def __init__(self) -> None:
        """Empty; `handlers.all_handlers` fills one."""
        self._handlers: dict[str, Handler] = {}

    def handler(
        self, name: str, model: type[C], *, idempotent_by: str | None = None
    ) -> Callable[
        [Callable[[Context, C], Awaitable[None]]], Callable[[Context, C], Awaitable[None]]
    ]:
        """Register a function under a name that is not taken yet."""

        def register(
            function: Callable[[Context, C], Awaitable[None]],
        ) -> Callable[[Context, C], Awaitable[None]]:
            if name in self._handlers:
                raise ValueError(f"there is a handler {name} already")
            self._handlers[name] = Handler(name, model, function, idempotent_by)
            return function

        return register

    def prepare(self, name: str) -> Callable[[Prepare], Prepare]:
        """Register what completes a message's data from its envelope before it is validated."""

        def register(function: Prepare) -> Prepare:
            known = self._handlers[name]
            self._handlers[name] = Handler(
                known.name, known.model, known.run, known.idempotent_by, function
            )
            return function

        return register

    def find(self, name: str) -> Handler | None:
        """The handler of that name, or None."""
        return self._handlers.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._handlers))
