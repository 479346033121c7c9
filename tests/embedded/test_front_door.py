"""The door of a private Cloud Run service: who gets in, and what the service behind it sees."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import StreamingResponse

from app.embedded.front_door import FrontDoor

INVOKER, STRANGER = "push@demo.test", "somebody@demo.test"
TOKENS = {"head.invoker.sig": INVOKER, "head.stranger.sig": STRANGER}


async def verify(token):
    return TOKENS.get(token)


@asynccontextmanager
async def serving(app):
    """The address of a real server for an ASGI app."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="warning", lifespan="off", proxy_headers=False)
    )
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.002)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


class Service:
    """What stands behind the door: it remembers each request and answers in two pieces."""

    def __init__(self):
        self.requests = []

    async def __call__(self, scope, receive, send):
        request = Request(scope, receive)
        self.requests.append((request, await request.body()))

        async def pieces():
            yield b"first "
            yield b"second"

        response = StreamingResponse(pieces(), 202, {"x-answer": "of the service"})
        await response(scope, receive, send)


@asynccontextmanager
async def door_to(target):
    door = FrontDoor(target, verify, {INVOKER})
    try:
        async with serving(door) as url, httpx.AsyncClient(base_url=url) as client:
            yield client
    finally:
        await door.aclose()


@pytest.fixture(scope="module")
async def front():
    service = Service()
    async with serving(service) as url, door_to(url) as client:
        yield client, service


@pytest.fixture
def client(front):
    return front[0]


@pytest.fixture
def requests(front):
    front[1].requests.clear()
    return front[1].requests


def bearer(token):
    return {"authorization": f"Bearer {token}"}


async def test_invokers_request_reaches_the_service_as_it_was_sent(client, requests):
    answer = await client.post(
        "/push/a%2Fb?x=1&x=%20",
        content=b"body",
        headers={**bearer("head.invoker.sig"), "content-type": "application/json"},
    )

    request, body = requests[0]
    assert request.method == "POST"
    assert request.scope["raw_path"] == b"/push/a%2Fb"
    assert request.scope["query_string"] == b"x=1&x=%20"
    assert body == b"body"
    assert request.headers["host"] == client.base_url.netloc.decode()
    assert request.headers["content-type"] == "application/json"
    assert (answer.status_code, answer.text) == (202, "first second")
    assert answer.headers["x-answer"] == "of the service"


async def test_token_in_authorization_arrives_intact(client, requests):
    await client.get("/", headers=bearer("head.invoker.sig"))

    assert requests[0][0].headers["authorization"] == "Bearer head.invoker.sig"


async def test_signature_of_the_serverless_header_is_removed(client, requests):
    await client.get("/", headers={"x-serverless-authorization": "Bearer head.invoker.sig"})

    assert requests[0][0].headers["x-serverless-authorization"] == (
        "bearer head.invoker.SIGNATURE_REMOVED_BY_GOOGLE"
    )


async def test_only_the_serverless_header_is_checked_where_it_is_present(client, requests):
    serverless = {"x-serverless-authorization": "Bearer head.invoker.sig"}

    let_in = await client.get("/", headers={**serverless, **bearer("of.another.kind")})
    kept_out = await client.get(
        "/",
        headers={
            "x-serverless-authorization": "Bearer head.forged.sig",
            **bearer("head.invoker.sig"),
        },
    )

    assert (let_in.status_code, kept_out.status_code) == (202, 401)
    assert [request.headers["authorization"] for request, _ in requests] == [
        "Bearer of.another.kind"
    ]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        (bearer("head.stranger.sig"), 403),
        (bearer("head.forged.sig"), 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Basic eDp5"}, 401),
    ],
)
async def test_nobody_else_gets_in(client, requests, headers, status):
    answer = await client.post("/push", content=b"x", headers=headers)

    assert answer.status_code == status
    assert requests == []
    assert ("www-authenticate" in answer.headers) == (status == 401)


async def test_request_carries_where_it_came_from(client, requests):
    headers = {**bearer("head.invoker.sig"), "x-forwarded-for": "6.6.6.6", "forwarded": "for=x"}

    await client.get("/", headers=headers)

    seen = requests[0][0].headers
    assert seen["x-forwarded-for"] == "6.6.6.6, 127.0.0.1"
    assert seen["x-forwarded-proto"] == "https"
    assert seen["forwarded"] == 'for="127.0.0.1";proto=https'


async def test_request_gets_no_header_that_nobody_sent(client, requests):
    request = client.build_request("GET", "/", headers=bearer("head.invoker.sig"))
    for name in ("accept", "accept-encoding", "user-agent"):
        del request.headers[name]

    await client.send(request)

    assert set(requests[0][0].headers) == {
        "host",
        "authorization",
        "x-forwarded-for",
        "x-forwarded-proto",
        "forwarded",
    }


async def test_service_that_cannot_be_reached_is_503():
    async with serving(Service()) as gone:
        pass

    async with door_to(gone) as client:
        answer = await client.get("/", headers=bearer("head.invoker.sig"))

    assert answer.status_code == 503
