"""Serve an ASGI app on loopback from within a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any, cast

import uvicorn

from app.embedded.ports import LOOPBACK
from app.embedded.tls import TlsFiles

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

logging.getLogger("uvicorn.error").addHandler(logging.NullHandler())


class _Quiet(uvicorn.Server):
    """A server that leaves signals to whoever owns the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


class LoopbackServer:
    """One app on one loopback port; plain HTTP unless `tls` is given.

    The port (0: any free one) is taken from the construction on, so `url` may be passed on at once;
    requests are answered between `start()` and `stop()`.
    """

    def __init__(self, app: AsgiApp, *, port: int = 0, tls: TlsFiles | None = None) -> None:
        self._socket = socket.create_server((LOOPBACK, port), backlog=256)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://{LOOPBACK}:{self.port}"
        self._server = _Quiet(
            uvicorn.Config(
                cast("Any", app),  # the same protocol, spelt with fewer types
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                ssl_certfile=tls.certificate_file if tls else None,
                ssl_keyfile=tls.key_file if tls else None,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when requests are answered."""
        self._task = asyncio.create_task(self._server.serve([self._socket]))
        while not self._server.started:
            if self._task.done():
                await self._task
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        """Close the port; running requests get a second."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
        self._socket.close()
