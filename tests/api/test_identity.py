"""Who may call what: decided before anything of the body is read."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from fastapi.routing import APIRoute

from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.main import create_app
from tests.driver import Caller, RunnerClient

OPEN = {"/livez", "/readyz", "/metrics"}
IDS = {
    "attempt_id": str(uuid4()),
    "lease_id": str(uuid4()),
    "operation_id": str(uuid4()),
    "runner_id": "runner-1",
    "stream": "stdout",
}


def routes_of(services) -> list[tuple[str, str, frozenset[str]]]:
    """Method, path and tags of every route that needs an identity."""
    routes = []
    pending = list(create_app(services).routes)
    while pending:
        route = pending.pop()
        pending += getattr(getattr(route, "original_router", None), "routes", [])
        if isinstance(route, APIRoute) and route.path not in OPEN and "docs" not in route.path:
            method = next(iter(route.methods))
            path = route.path
            for name, value in IDS.items():
                path = path.replace(f"{{{name}}}", value)
            routes.append((method, path, frozenset(route.tags)))
    return routes


async def never_read() -> AsyncIterator[bytes]:
    raise AssertionError("the body was read")
    yield b""


def is_refusal(answer, status: int, reason: str) -> bool:
    return (
        answer.status_code == status
        and answer.headers["Content-Type"] == "application/problem+json"
        and answer.json()["reason"] == reason
    )


async def test_every_route_needs_a_token_and_reads_nothing_without_one(http, services):
    routes = [route for route in routes_of(services) if route[1].startswith("/v1")]

    assert len(routes) > 15
    for method, path, _ in routes:
        answer = await http.request(method, path, content=never_read())

        assert is_refusal(answer, 401, "unauthenticated"), (method, path, answer.text)
        assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ["Bearer x", "Bearer a.b.c", "Bearer " + "x" * 9000])
async def test_refused_token_is_not_repeated_and_says_no_cause(header, http):
    answer = await http.post(
        "/v1/attempts", content=never_read(), headers={"Authorization": header}
    )

    assert is_refusal(answer, 401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"] == 'Bearer error="invalid_token"'
    assert header.removeprefix("Bearer ") not in answer.json().values()


async def test_second_authorization_header_is_refused(http, control):
    token = control.headers["Authorization"]

    answer = await http.get(
        "/v1/attempts", headers=[("Authorization", token), ("Authorization", token)]
    )

    assert is_refusal(answer, 401, "unauthenticated")


@pytest.mark.parametrize("role", ["control-plane", "runner", "operator", "pubsub"])
async def test_no_role_may_call_the_routes_of_another(role, http, issuer, services):
    caller = Caller(http, issuer[0].mint(ACCOUNTS[role], AUDIENCE))
    others = {
        "control-plane": {"runners"},
        "operator": {"runners"},
        "runner": {"attempts"},
        "pubsub": {"runners", "attempts"},
    }[role]
    foreign = [(method, path) for method, path, tags in routes_of(services) if tags & others]

    assert foreign
    for method, path in foreign:
        answer = await caller.call(method, path, content=never_read())

        assert is_refusal(answer, 403, "forbidden"), (method, path, answer.text)


async def test_account_without_a_grant_is_forbidden(http, issuer):
    stranger = Caller(http, issuer[0].mint("stranger@dev.localhost", AUDIENCE))

    assert is_refusal(await stranger.call("GET", "/v1/attempts"), 403, "forbidden")


async def test_token_for_another_audience_is_refused(http, issuer):
    caller = Caller(http, issuer[0].mint(ACCOUNTS["control-plane"], "https://elsewhere.test"))

    assert is_refusal(await caller.call("GET", "/v1/attempts"), 401, "unauthenticated")


@pytest.fixture
def bound(open_instance, issuer):
    """A runner identity that is bound as its grant says, and may also be somebody else's."""

    async def make(**grant):
        granted = {
            "issuer": "test",
            "audiences": [AUDIENCE],
            **grant,
        }
        http = await open_instance(
            IDENTITY__GRANTS=[
                {"role": "runner", "accounts": ["bound@dev.localhost"], **granted},
                {
                    "role": "control-plane",
                    "accounts": [ACCOUNTS["control-plane"]],
                    "issuer": "test",
                    "audiences": [AUDIENCE],
                },
            ]
        )
        token = issuer[0].mint("bound@dev.localhost", AUDIENCE)
        return lambda **profile: RunnerClient(http, token, **profile)

    return make


async def test_runner_identity_speaks_only_for_ids_with_its_prefix(bound):
    make = await bound(runner_id_prefixes=["eu-"])

    assert (await make(id="eu-1").try_register()).status_code == 200
    for other in ("us-1", "eu", "EU-1", "x-eu-1"):
        runner = make(id=other)
        report = {"session_id": runner.session_id, "sequence": 1, "status": "ready"}
        answers = [
            await runner.try_register(),
            await runner.try_claim(),
            await runner.call(
                "PUT", f"/v1/runners/{other}/status", json=report | {"capacity_total": 1}
            ),
        ]
        assert all(is_refusal(answer, 403, "forbidden") for answer in answers), other


async def test_runner_identity_registers_only_its_kinds_and_capabilities(bound):
    make = await bound(runner_kinds=["ssh"], runner_capabilities=["ssh.command.run"])

    allowed = await make().try_register()
    other_kind = await make(runner_kind="helm", capabilities=["helm.install"]).try_register()
    wider = await make(capabilities=["ssh.command.run", "ssh.*"]).try_register()

    assert allowed.status_code == 200
    assert is_refusal(other_kind, 403, "forbidden")
    assert is_refusal(wider, 403, "forbidden")


@pytest.mark.parametrize("path", sorted(OPEN))
async def test_health_and_metrics_need_no_token(path, http):
    assert (await http.get(path)).status_code == 200
