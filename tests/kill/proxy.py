"""A proxy between a service and its database that can be cut: nothing comes through, both wait."""

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit


class DatabaseProxy:
    """One port of the loopback, in front of one database."""

    def __init__(self, database: str) -> None:
        self._to = urlsplit(database)
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self.url = ""

    async def start(self) -> "DatabaseProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        to = self._to
        self.url = f"postgresql://{to.username}:{to.password}@127.0.0.1:{port}{to.path}"
        return self

    def cut(self) -> None:
        """From here on every packet is held back, and so is every new connection."""
        self._open.clear()

    def heal(self) -> None:
        """Let everything through that was held back."""
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        try:
            up_reader, up_writer = await asyncio.open_connection(self._to.hostname, self._to.port)
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, up_writer), (up_reader, writer)):
            task = asyncio.create_task(self._pipe(source, sink))
            self._pipes.add(task)
            task.add_done_callback(self._pipes.discard)

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await source.read(65536):
                    await self._open.wait()
                    sink.write(data)
                    await sink.drain()
        finally:
            sink.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._pipes):
            task.cancel()
        if self._pipes:
            await asyncio.wait(list(self._pipes))
        await self._server.wait_closed()
