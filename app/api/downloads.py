"""How the body of an artifact is answered: whole, a range of it, or the way to the store."""

from __future__ import annotations

import base64
import re
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from app.api.identity import services_of
from app.api.ranges import parse_range
from app.domain.records import Artifact
from app.handlers import artifacts as artifact_handlers

_UNSAFE_IN_NAMES = re.compile(r"[^A-Za-z0-9._ -]")

CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The body."},
    206: {"content": {"application/octet-stream": {}}, "description": "A range of it."},
    307: {"description": "Where the store has it, for the life of the address."},
    410: {"description": "The body has been removed."},
    416: {"description": "The range lies beyond the end."},
    502: {"description": "The stored body no longer has its digest."},
}


async def content(request: Request, artifact: Artifact) -> Response:
    """The body, a range of it, or the way to it."""
    services = services_of(request)
    disposition = _disposition(artifact)
    headers = _content_headers(artifact, disposition)
    signed = await artifact_handlers.sign_download(services, artifact, disposition)
    if signed is not None:
        return Response(status_code=307, headers={**headers, "Location": signed.url})
    total = artifact.byte_size
    wanted = parse_range(request.headers.get("range"), total)
    if wanted is not None:
        first, last = wanted
        headers |= {
            "Content-Range": f"bytes {first}-{last}/{total}",
            "Content-Length": str(last - first + 1),
        }
        body = artifact_handlers.read_range(services, artifact, first, last)
        return StreamingResponse(body, 206, headers, artifact.content_type)
    small = await artifact_handlers.read_verified(services, artifact)
    if small is not None:
        return Response(small, 200, headers, artifact.content_type)
    headers["Content-Length"] = str(total)
    body = artifact_handlers.read_whole(services, artifact)
    return StreamingResponse(body, 200, headers, artifact.content_type)


def _content_headers(artifact: Artifact, disposition: str) -> dict[str, str]:
    """Headers of every body: its digest (RFC 9530), and nothing in it may act in a browser."""
    sha256 = bytes.fromhex(artifact.digest.removeprefix("sha256:"))
    return {
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-store",
        "Content-Disposition": disposition,
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "ETag": f'"{artifact.digest}"',
        "Repr-Digest": f"sha-256=:{base64.b64encode(sha256).decode()}:",
        "X-Content-Type-Options": "nosniff",
    }


def _disposition(artifact: Artifact) -> str:
    """To be saved under its name: plain letters for all, the rest by RFC 8187."""
    name = artifact.name or str(artifact.id)
    plain = _UNSAFE_IN_NAMES.sub("_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
