"""How a process serves: loops and application together, until it is asked to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
import uvicorn
from fastapi import FastAPI

from app.loops.supervisor import Supervisor, loops_of
from app.main import create_app
from app.settings import Settings
from app.telemetry import configure_logging, configure_tracing
from app.wiring import open_services

_LOG = structlog.get_logger(__name__)


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: this process decides when to stop, and how."""

    async def serve_quietly(self) -> None:
        await self._serve()


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then stop gracefully. Exits 1 if a loop broke."""
    configure_logging(settings.telemetry.log_format, settings.telemetry.log_level)
    configure_tracing()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner_:
        runner_.run(_serve(settings))


def _loop_factory() -> type[asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415 - not there on every platform
    except ImportError:
        return asyncio.SelectorEventLoop
    return uvloop.Loop


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_services(settings) as services:
        supervisor = Supervisor(services, loops_of(settings.role))
        app = create_app(services)
        server = _Server(_uvicorn_config(app, settings))
        async with _running(supervisor):
            serving = asyncio.create_task(server.serve_quietly())
            broken = asyncio.create_task(supervisor.wait_broken())
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait([serving, broken, stopped], return_when=asyncio.FIRST_COMPLETED)
            _LOG.info("service.stopping", asked=stop.is_set())
            app.state.draining.set()
            services.signals.drain()
            server.should_exit = True
            await serving
            stopped.cancel()
            broken.cancel()
            if not stop.is_set():
                raise SystemExit(1)


@asynccontextmanager
async def _running(supervisor: Supervisor) -> AsyncIterator[None]:
    supervisor.start()
    try:
        yield
    finally:
        await supervisor.stop()


def _uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    server = settings.server
    return uvicorn.Config(
        app,
        host=server.host,
        port=server.port,
        ssl_certfile=server.tls_certificate_file,
        ssl_keyfile=server.tls_key_file,
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        backlog=server.backlog,
        timeout_graceful_shutdown=int(server.graceful_stop_seconds),
        timeout_keep_alive=30,
    )
