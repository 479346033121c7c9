"""A proxy before a real store that misbehaves when it is told to, as stores and networks do."""

import re
from collections.abc import Awaitable, Callable
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.embedded.serving import LoopbackServer

Fault = Callable[[Request, bytes], Awaitable[Response | None]]
_XML = "application/xml"
_HOP = {"content-length", "transfer-encoding", "connection", "content-encoding"}


class FaultyStore:
    """Passes everything on, unless `fault` answers itself, and lets `spoil` change what came."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.fault: Fault | None = None
        self.spoil: Callable[[Request, Response], Response] | None = None
        self.seen: list[tuple[str, str]] = []
        app = Starlette(
            routes=[
                Route(
                    "/{path:path}", self._handle, methods=["GET", "PUT", "POST", "DELETE", "HEAD"]
                )
            ]
        )
        self._server = LoopbackServer(app)
        self._client = httpx.AsyncClient(timeout=30)

    @property
    def url(self) -> str:
        return self._server.url

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop()
        await self._client.aclose()

    async def forward(self, request: Request, body: bytes) -> Response:
        """What the store says; the signature is for the host that the caller named."""
        path = request.scope["raw_path"].decode()
        query = request.scope["query_string"].decode()
        answer = await self._client.request(
            request.method,
            f"{self._target}{path}{'?' if query else ''}{query}",
            content=body,
            headers=[(name, value) for name, value in request.headers.items()],
        )
        headers = {k: v for k, v in answer.headers.items() if k not in _HOP}
        if request.method == "HEAD":
            headers["content-length"] = answer.headers.get("content-length", "0")
        return Response(answer.content, answer.status_code, headers)

    async def _handle(self, request: Request) -> Response:
        self.seen.append((request.method, request.url.query))
        body = await request.body()
        if self.fault is not None:
            own = await self.fault(request, body)
            if own is not None:
                return own
        answer = await self.forward(request, body)
        return answer if self.spoil is None else self.spoil(request, answer)


def error(code: str, status: int) -> Response:
    """An error as S3 tells it; with status 200 it is still one."""
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
    return Response(text, status, media_type=_XML)


def is_batch_delete(request: Request) -> bool:
    return request.method == "POST" and "delete" in request.query_params


def keys_of(body: bytes) -> list[str]:
    """The keys that a batch of deletes names."""
    root = ET.fromstring(re.sub(rb' xmlns="[^"]+"', b"", body))
    return [node.text or "" for node in root.iter("Key")]


def delete_answer(refused: list[str]) -> Response:
    """A 200 that tells within it which keys were not deleted."""
    errors = "".join(
        f"<Error><Key>{escape(key)}</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        for key in refused
    )
    return Response(f"<?xml version='1.0'?><DeleteResult>{errors}</DeleteResult>", media_type=_XML)
