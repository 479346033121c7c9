"""The explicit list of what an envelope's `to` may name.

A handler is one function: `@registry.handler("name", Model)`, or `@registry.set_handler(…)` for one
that carries out many messages at once. Its context has the services, the
envelope, a logger and a span that carry the envelope's id and, unless the handler is idempotent by
a key of its own, the transaction in which its effects, its state documents and the note that the
message is done commit together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

from opentelemetry.trace import INVALID_SPAN, Span
from structlog.typing import FilteringBoundLogger

from app.domain.commands import Command
from app.domain.envelope import Envelope
from app.domain.errors import ServiceError
from app.handlers.states import StateDocuments
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
    """Bound to the envelope's id."""
    connection: Connection | None
    """The open transaction; None for a handler that is idempotent by a key of its own."""
    span: Span = INVALID_SPAN
    """The span of this message; its parent is the one that the publisher named."""

    @property
    def transaction(self) -> Connection:
        """The open transaction. RuntimeError in a handler that has none."""
        if self.connection is None:
            raise RuntimeError("a handler that is idempotent by its own key has no transaction")
        return self.connection

    @property
    def state(self) -> StateDocuments:
        """The state documents, within the transaction. RuntimeError in a handler without one."""
        return StateDocuments(self.transaction)


RunMany: TypeAlias = Callable[
    [Sequence[Context], Sequence[C]], Awaitable[Sequence[ServiceError | None]]
]


@dataclass(frozen=True, slots=True)
class Handler:
    """One entry: a name, the model of its data and the function.

    `run_many`, where there is one, carries out many messages in one transaction.
    """

    name: str
    model: type[Command]
    run: Callable[[Context, Any], Awaitable[None]]
    idempotent_by: str | None
    prepare: Prepare | None = None
    run_many: RunMany[Any] | None = None

    @property
    def under_lease(self) -> bool:
        """Whether its data carries the proof of a lease."""
        return "lease_token" in self.model.model_fields


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
        """Register a function under a name that is not taken yet.

        `idempotent_by` names the key in its data by which a repeat has no second effect. Such a
        handler makes its own transactions and no note that the message is done.
        """

        def register(
            function: Callable[[Context, C], Awaitable[None]],
        ) -> Callable[[Context, C], Awaitable[None]]:
            if name in self._handlers:
                raise ValueError(f"there is a handler {name} already")
            self._handlers[name] = Handler(name, model, function, idempotent_by)
            return function

        return register

    def set_handler(self, name: str, model: type[C]) -> Callable[[RunMany[C]], RunMany[C]]:
        """Register a function that carries out many messages in one transaction, at most 64.

        Their contexts share it. It returns by position None, or the error by which one was refused
        and which must have had no effect; whatever it raises undoes all, and each is tried alone.
        """

        def register(function: RunMany[C]) -> RunMany[C]:
            async def run(context: Context, command: C) -> None:
                [error] = await function([context], [command])
                if error is not None:
                    raise error

            self.handler(name, model)(run)
            self._handlers[name] = replace(self._handlers[name], run_many=function)
            return function

        return register

    def prepare(self, name: str) -> Callable[[Prepare], Prepare]:
        """Register what completes a message's data from its envelope before it is validated."""

        def register(function: Prepare) -> Prepare:
            self._handlers[name] = replace(self._handlers[name], prepare=function)
            return function

        return register

    def find(self, name: str) -> Handler | None:
        """The handler of that name, or None."""
        return self._handlers.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._handlers))
