"""The short way past FastAPI: who goes it, and that nobody can tell."""

from uuid import uuid4

import pytest

from app.api import batches, runner
from app.api import control as attempts
from app.api.hot import HotPaths, HotRoute
from tests.driver import new_attempt

HOT = {
    "attempts_cancel",
    "attempts_create",
    "attempts_create_many",
    "leases_claim",
    "leases_complete",
    "leases_complete_many",
    "leases_heartbeat",
    "leases_heartbeat_many",
    "leases_release",
    "leases_start",
    "leases_start_many",
    "operations_cancel",
}
ROUTES = [
    route
    for router in (batches.control, batches.runner, attempts.router, runner.router)
    for route in router.routes
]
PATHS = HotPaths(ROUTES)
LEASE = "5c2a6c0e-1c53-4ff0-8f4e-3f3f9d7d2b03"


def scope(method: str, path: str, query: bytes = b"") -> dict:
    return {"type": "http", "method": method, "path": path, "query_string": query, "headers": []}


def test_busiest_routes_are_hot():
    assert {route.name for route in ROUTES if isinstance(route, HotRoute) and route.is_hot} == HOT


@pytest.mark.parametrize("route", [one for one in ROUTES if one.name in HOT], ids=lambda r: r.name)
def test_request_to_a_hot_route_is_found_with_its_arguments(route):
    ids = {"lease_id": uuid4(), "attempt_id": uuid4(), "operation_id": uuid4(), "runner_id": "r-1"}
    given = scope("POST", route.path.format(**ids))

    assert PATHS.find(given)
    assert given["route"] is route
    assert given["path_params"].items() <= ids.items()


@pytest.mark.parametrize(
    "unusual",
    [
        scope("GET", "/v1/attempts"),
        scope("POST", "/v1/attempts", b"x=1"),
        scope("POST", "/v1/attempts/"),
        scope("POST", "/v1/leases/none:start"),
        scope("POST", f"/v1/leases/{LEASE}:begin"),
        scope("POST", f"/v2/leases/{LEASE}:start"),
        scope("PUT", f"/v1/leases/{LEASE}:start"),
        scope("POST", "/v1/runners/a b/leases:claim"),
    ],
    ids=lambda one: f"{one['method']} {one['path']}{'?' if one['query_string'] else ''}",
)
def test_whatever_is_unusual_is_left_to_fastapi(unusual):
    assert not PATHS.find(unusual)


async def test_both_ways_answer_alike(control):
    """A parameter that nobody knows is told by its name, which is what FastAPI is asked for."""
    refused = await control.call("POST", "/v1/attempts?dry_run=true", json=new_attempt())
    made = await control.call("POST", "/v1/attempts", json=new_attempt())

    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/query/dry_run"
    assert made.status_code == 201
    for name in ("request-id", "content-type", "content-length"):
        assert name in refused.headers
        assert name in made.headers


async def test_metrics_tell_hot_requests_by_their_template(control, http):
    await control.call("POST", "/v1/attempts", json=new_attempt())

    metrics = (await http.get("/metrics")).text

    assert 'route="/v1/attempts",status="201"' in metrics
