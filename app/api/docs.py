"""The API's documentation, served by the process itself: it works offline and loads nothing else.

The viewer is vendored under `static/swagger-ui`; the pages on errors and the lifecycle are made
from the tables that the service works by.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from html import escape
from http import HTTPStatus
from pathlib import Path
from string import Template
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.api.advice import PLAIN, reasons
from app.domain.lifecycle import EVENT_OF_MOVE, TERMINAL, TRANSITIONS, Status

STATIC = Path(__file__).with_name("static")
HTML = "text/html; charset=utf-8"
FILES = {
    "icon.svg": "image/svg+xml",
    "pages.css": "text/css; charset=utf-8",
    "viewer.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
}
"""What `/docs/static/` hands out, and nothing else."""

POLICY = "; ".join(  # noqa: FLY002 - a directive a line
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept-Encoding",
}
_PAGE = "no-cache"
_FILE = "public, max-age=3600"

_router = APIRouter(include_in_schema=False)


def add_docs(app: FastAPI) -> None:
    """Add `/`, `/docs`, its pages and files, and `/openapi.json`. None of them needs a token."""
    app.state.openapi_body = cache(lambda: Body.of(orjson.dumps(app.openapi())))
    app.include_router(_router)


@dataclass(frozen=True, slots=True)
class Body:
    """Something to hand out, in both forms that a client may want it in."""

    plain: bytes
    packed: bytes
    tag: str

    @classmethod
    def of(cls, plain: bytes, packed: bytes | None = None) -> Body:
        """The body with its entity tag; packed here unless that was done before."""
        tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
        return cls(plain, packed or gzip.compress(plain, mtime=0), tag)

    def answer(self, request: Request, media_type: str, caching: str) -> Response:
        """200, or 304 to a client that has it already; packed for a client that can unpack it."""
        headers = {**_HEADERS, "Cache-Control": caching, "ETag": self.tag}
        known = request.headers.get("if-none-match", "")
        if self.tag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        if re.search(r"\bgzip\b", request.headers.get("accept-encoding", "")):
            headers["Content-Encoding"] = "gzip"
            return Response(self.packed, headers=headers, media_type=media_type)
        return Response(self.plain, headers=headers, media_type=media_type)


@_router.get("/")
async def root(request: Request) -> Response:
    """Say what answers here, and where to go on."""
    return JSONResponse(
        {
            "name": "execution-plane-service",
            "version": request.app.version,
            "docs": "/docs",
            "openapi": "/openapi.json",
            "health": "/readyz",
            "push": "/push/pubsub",
        }
    )


@_router.get("/openapi.json")
def openapi(request: Request) -> Response:
    """The OpenAPI document, made once."""
    body: Body = request.app.state.openapi_body()
    return body.answer(request, "application/json", _PAGE)


@_router.get("/docs")
def viewer(request: Request) -> Response:
    """The viewer of the OpenAPI document."""
    return _viewer().answer(request, HTML, _PAGE)


@_router.get("/docs/errors")
def errors(request: Request) -> Response:
    """Every reason that an error may give. The `type` of a problem points here."""
    return _errors().answer(request, HTML, _PAGE)


@_router.get("/docs/lifecycle")
def lifecycle(request: Request) -> Response:
    """What may happen to an attempt."""
    return _lifecycle().answer(request, HTML, _PAGE)


@_router.get("/docs/static/{name}")
def static(request: Request, name: str) -> Response:
    """One file of the pages."""
    if name not in FILES:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    return _file(name).answer(request, FILES[name], _FILE)


@cache
def _file(name: str) -> Body:
    """A file of ours, or one of the viewer, which is kept packed."""
    packed = STATIC / "swagger-ui" / f"{name}.gz"
    if packed.exists():
        content = packed.read_bytes()
        return Body.of(gzip.decompress(content), content)
    return Body.of((STATIC / name).read_bytes())


@cache
def _viewer() -> Body:
    return Body.of((STATIC / "viewer.html").read_bytes())


@cache
def _errors() -> Body:
    rows = [
        (one.reason, one.answer.status, one.sentence, one.advice, one.answer.push.value)
        for one in reasons()
    ]
    rows += [(reason, status, sentence, advice, "") for status, reason, sentence, advice in PLAIN]
    intro = (
        "<p>Errors are <code>application/problem+json</code> (RFC 9457). <code>reason</code> is "
        "stable; <code>detail</code> and further members say what is special to the case; "
        "<code>request_id</code> finds the log line. The last column says what the same error "
        "means for a message that Pub/Sub pushed.</p>"
    )
    return _page(
        "Errors",
        intro + _table(("Reason", "Status", "What it says", "What to do", "Over push"), rows),
    )


@cache
def _lifecycle() -> Body:
    rows = [
        (status, "at the end" if status in TERMINAL else _names(TRANSITIONS[status]), event)
        for status, event in EVENT_OF_MOVE.items()
    ]
    intro = (
        "<p>An attempt begins as <code>queued</code> and moves forward only. A move and its event "
        "are one transaction.</p>"
    )
    return _page("Lifecycle", intro + _table(("Status", "May become", "Event of its begin"), rows))


def _names(statuses: frozenset[Status]) -> str:
    return ", ".join(f"`{status}`" for status in Status if status in statuses)


def _page(title: str, body: str) -> Body:
    template = Template((STATIC / "page.html").read_text())
    return Body.of(template.substitute(title=escape(title), body=body).encode())


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    """A table whose rows can be linked to by their first cell."""
    lines = ["<table>", "<thead><tr>", *(f'<th scope="col">{name}</th>' for name in head)]
    lines += ["</tr></thead>", "<tbody>"]
    for first, *cells in rows:
        anchor = escape(str(first))
        lines.append(f'<tr id="{anchor}"><td><a href="#{anchor}"><code>{anchor}</code></a></td>')
        lines += [f"<td>{_marked(str(cell))}</td>" for cell in cells]
        lines.append("</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def _marked(text: str) -> str:
    """Plain text with `code` marked as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
