"""How a process serves: loops and application together, until it is asked to stop."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI

from app.api.connections import BoundedProtocol, Doorkeeper
from app.api.inside import Inside
from app.api.tls import CertificateFiles
from app.domain.errors import SettingsInvalid
from app.handlers import all_handlers
from app.handlers.registry import Registry
from app.loops.supervisor import Supervisor, loops_of
from app.main import create_app
from app.services import Services
from app.settings import ServerSettings, Settings
from app.telemetry import Metrics, configure_logging, configure_tracing
from app.wiring import open_services

_LOG = structlog.get_logger(__name__)
_NEW_OBJECTS = 10_000
"""Objects between two collections of the young ones; some requests make hundreds."""


class _Server(uvicorn.Server):
    """uvicorn with connections within limits, and without its signal handling."""

    def __init__(self, app: FastAPI, settings: ServerSettings, metrics: Metrics) -> None:
        """SettingsInvalid if there are TLS files and they cannot be used."""
        super().__init__(_uvicorn_config(app, settings))
        self._settings = settings
        self._door = Doorkeeper(
            settings, lambda cause: metrics.connections_refused.labels(cause).inc()
        )
        self._files: CertificateFiles | None = None
        if settings.tls_certificate_file and settings.tls_key_file:
            self._files = CertificateFiles(settings.tls_certificate_file, settings.tls_key_file)
        self._renewing: asyncio.Task[None] | None = None

    async def serve_quietly(self) -> None:
        """Serve until `should_exit`."""
        await self._serve()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Listen. A client that does not finish its handshake is given up like one that is silent.

        SystemExit if the address cannot be had.
        """
        settings = self._settings
        loop = asyncio.get_running_loop()
        tls = self._files
        try:
            server = await loop.create_server(
                lambda: BoundedProtocol(
                    doorkeeper=self._door,
                    config=self.config,
                    server_state=self.server_state,
                    app_state={},
                ),
                settings.host,
                settings.port,
                ssl=tls.context if tls else None,
                backlog=settings.backlog,
                ssl_handshake_timeout=settings.first_byte_timeout_seconds if tls else None,
            )
        except OSError as error:
            _LOG.error("service.cannot_listen", cause=error.strerror, port=settings.port)
            raise SystemExit(1) from None
        self.servers = [server]
        if tls is not None:
            self._renewing = asyncio.create_task(tls.keep_fresh(settings.tls_check_seconds))
        self.started = True
        _LOG.info("service.listening", address=server.sockets[0].getsockname()[:2], tls=bool(tls))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let running requests end."""
        if self._renewing is not None:
            self._renewing.cancel()
        await super().shutdown(sockets)


def serve(settings: Settings, registry: Registry | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then stop gracefully. Exits 1 if a loop broke.

    `registry` replaces the handlers, for tests.
    """
    try:
        run(serve_until_stopped(settings, registry), settings)
    except SettingsInvalid as invalid:
        _LOG.error("service.not_started", problems=invalid.problems)
        raise SystemExit(1) from None


def run(serving: Coroutine[Any, Any, None], settings: Settings) -> None:
    """Run the coroutine with this service's logging, tracing and event loop."""
    configure_logging(settings.telemetry.log_format, settings.telemetry.log_level)
    configure_tracing()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner_:
        runner_.run(serving)


def _loop_factory() -> type[asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415 - not there on every platform
    except ImportError:
        return asyncio.SelectorEventLoop
    return uvloop.Loop


async def serve_until_stopped(settings: Settings, registry: Registry | None = None) -> None:
    """Open the services and serve with them until a signal asks to stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_services(settings) as services:
        await serve_with(services, stop, registry)


async def serve_with(
    services: Services, stop: asyncio.Event, registry: Registry | None = None
) -> None:
    """Serve with these services until `stop`. SystemExit(1) if a loop or the server broke."""
    settings = services.settings
    registry = registry or all_handlers.build()
    _warn(settings, registry)
    app = create_app(services, registry)
    inside = Inside(services, app.state.dispatcher)
    supervisor = Supervisor(services, loops_of(settings.role, inside.deliver))
    server = _Server(app, settings.server, services.metrics)
    _spare_collections()
    async with _running(supervisor):
        serving = asyncio.create_task(server.serve_quietly())
        broken = asyncio.create_task(supervisor.wait_broken())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, broken, stopped], return_when=asyncio.FIRST_COMPLETED)
        _LOG.info("service.stopping", asked=stop.is_set())
        app.state.draining.set()
        services.signals.drain()
        server.should_exit = True
        # Another instance leads on while requests of this one still end.
        await asyncio.gather(serving, supervisor.hand_over())
        stopped.cancel()
        broken.cancel()
        if not stop.is_set():
            raise SystemExit(1)


def _spare_collections() -> None:
    """Let the garbage collector pass by what lives as long as the process: it is most of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)


def _warn(settings: Settings, registry: Registry) -> None:
    """Say at the start what every push will otherwise be refused for."""
    subscriptions = settings.push.subscriptions
    named = {handler for allowed in subscriptions.values() for handler in allowed}
    unknown = sorted(named.difference(registry.names))
    if unknown:
        _LOG.warning("push.handlers_unknown", handlers=unknown)
    if subscriptions and all(grant.role != "pubsub" for grant in settings.identity.grants):
        _LOG.warning("push.nobody_may_push", subscriptions=sorted(subscriptions))


@asynccontextmanager
async def _running(supervisor: Supervisor) -> AsyncIterator[None]:
    supervisor.start()
    try:
        yield
    finally:
        await supervisor.stop()


def _uvicorn_config(app: FastAPI, server: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        proxy_headers=False,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        timeout_graceful_shutdown=int(server.graceful_stop_seconds),
        timeout_keep_alive=30,
    )
