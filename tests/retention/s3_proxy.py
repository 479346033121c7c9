"""An S3 server that does not do all it is asked to: the real one behind a few lines."""

import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Self
from xml.sax.saxutils import escape

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.embedded.serving import LoopbackServer
from app.objects.store import ObjectStore

_OWN = {"content-length", "transfer-encoding", "connection"}


class StubbornStore:
    """Passes everything on but what `refuses` says; while `away` it answers nothing but 503."""

    def __init__(self, behind: ObjectStore, endpoint_url: str) -> None:
        self._behind = behind
        self._http = httpx.AsyncClient(base_url=endpoint_url, timeout=30)
        every = ["GET", "PUT", "POST", "DELETE", "HEAD"]
        route = Route("/{path:path}", self._answer, methods=every)
        self._server = LoopbackServer(Starlette(routes=[route]))
        self.refuses: Callable[[str], bool] = lambda _: False
        self.away = False
        self.away_after: int | None = None
        self.batches: list[int] = []

    @property
    def url(self) -> str:
        return self._server.url

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_) -> None:
        await self._server.stop()
        await self._http.aclose()

    async def _answer(self, request: Request) -> Response:
        if self.away:
            return Response(status_code=503)
        body = await request.body()
        if request.method == "POST" and "delete" in request.query_params:
            return await self._delete(body)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = [(k, v) for k, v in request.headers.items() if k not in _OWN]
        passed = await self._http.request(request.method, target, headers=headers, content=body)
        kept = {k: v for k, v in passed.headers.items() if k not in _OWN}
        return Response(passed.content, passed.status_code, kept)

    async def _delete(self, body: bytes) -> Response:
        keys = [str(one.text) for one in ET.fromstring(body).iter() if one.tag.endswith("Key")]
        self.batches.append(len(keys))
        refused = [key for key in keys if self.refuses(key)]
        await self._behind.delete([key for key in keys if not self.refuses(key)])
        if self.away_after is not None and len(self.batches) >= self.away_after:
            self.away = True  # it did what it was asked, and the answer is lost
            return Response(status_code=503)
        errors = "".join(
            f"<Error><Key>{escape(key)}</Key><Code>AccessDenied</Code></Error>" for key in refused
        )
        return Response(f"<DeleteResult>{errors}</DeleteResult>", 200, media_type="text/xml")
