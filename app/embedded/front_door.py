"""The door that Cloud Run's IAM puts in front of a private service, for tests.

It models what the service behind can notice: who gets in, and what the request then looks like.
It does not model timeouts, request limits, scaling, or the stripping of user tokens made by gcloud.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

import httpx
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

SERVERLESS = "x-serverless-authorization"
STRIPPED = "SIGNATURE_REMOVED_BY_GOOGLE"
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade")

Verify = Callable[[str], Awaitable[str | None]]


class FrontDoor:
    """An ASGI app that lets invokers through to `target`.

    `verify(token)` gives the account of a good token and None for any other. A caller without a
    token, or whose account is no invoker, gets 403, one with a bad token 401. Where
    `X-Serverless-Authorization` is present only that is checked, and its signature is removed; a
    token in `Authorization` passes unchanged.
    """

    def __init__(
        self, target: str, verify: Verify, invokers: Collection[str], ca_file: Path | None = None
    ) -> None:
        trust = True if ca_file is None else ssl.create_default_context(cafile=ca_file)
        self._client = httpx.AsyncClient(
            verify=trust,
            timeout=None,  # noqa: S113  long polls pass through
            trust_env=False,
        )
        self._target = httpx.URL(target)
        self._verify = verify
        self._invokers = invokers

    async def aclose(self) -> None:
        """Close the connections to the service."""
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then forward."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = await self._refusal(request.headers) or await self._forward(request)
        await response(scope, receive, send)

    async def _refusal(self, headers: Headers) -> Response | None:
        credentials = headers.get(SERVERLESS, headers.get("authorization"))
        if credentials is None:
            return PlainTextResponse("not authenticated", 403)
        scheme, _, token = credentials.partition(" ")
        account = await self._verify(token.strip()) if scheme.lower() == "bearer" else None
        if account is None:
            challenge = {"www-authenticate": 'Bearer error="invalid_token"'}
            return PlainTextResponse("the token is not valid", 401, challenge)
        if account not in self._invokers:
            return PlainTextResponse("not an invoker of this service", 403)
        return None

    async def _forward(self, request: Request) -> Response:
        query = request.scope["query_string"]
        path = request.scope["raw_path"] + (b"?" + query if query else b"")
        url = self._target.copy_with(raw_path=path)
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        body = request.stream() if has_body else None
        # Not by the client's own method, which adds headers that the caller never sent.
        outgoing = httpx.Request(request.method, url, headers=_passed_on(request).raw, content=body)
        try:
            answer = await self._client.send(outgoing, stream=True)
        except httpx.TransportError:
            return PlainTextResponse("the service cannot be reached", 503)
        response = StreamingResponse(_content(answer), answer.status_code)
        response.raw_headers = _without_hops(answer.headers.raw)
        return response


async def _content(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()


def _passed_on(request: Request) -> MutableHeaders:
    """The caller's headers with the platform's own, and without the signature it keeps back."""
    headers = MutableHeaders(raw=_without_hops(request.headers.raw))
    caller = request.client.host if request.client else "unknown"
    seen = [*headers.getlist("x-forwarded-for"), caller]
    headers["x-forwarded-for"] = ", ".join(seen)
    headers["x-forwarded-proto"] = "https"
    headers["forwarded"] = f'for="{caller}";proto=https'
    if SERVERLESS in headers:
        signed = headers[SERVERLESS].partition(" ")[2].rpartition(".")[0]
        headers[SERVERLESS] = f"bearer {signed}.{STRIPPED}"
    return headers


def _without_hops(raw: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in raw if name.lower().decode() not in _HOP_BY_HOP]
