"""One line a request, or of a share of the good ones; what was refused or failed always has one."""

import json

import pytest

from app.embedded.environment import ACCOUNTS, AUDIENCE
from tests.driver import Control, new_attempt
from tests.push.test_traces import logged  # noqa: F401 - a fixture


def lines_of(logged) -> list[dict]:  # noqa: F811
    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    return [line for line in lines if line["message"] == "request"]


@pytest.mark.parametrize(("share", "told"), [(1, [201] * 40 + [422, 404]), (0, [422, 404])])
async def test_refused_requests_have_a_line_whatever_the_share(
    open_instance,
    issuer,
    logged,  # noqa: F811
    share,
    told,
):
    http = await open_instance(TELEMETRY__ACCESS_LOG="true", TELEMETRY__ACCESS_LOG_SHARE=str(share))
    control = Control(http, issuer[0].mint(ACCOUNTS["control-plane"], AUDIENCE))

    for _ in range(40):
        await control.call("POST", "/v1/attempts", json=new_attempt())
    await control.call("POST", "/v1/attempts", json={})
    await control.call("GET", "/v1/nothing")
    await http.get("/livez")

    lines = lines_of(logged)
    assert [line["status"] for line in lines] == told
    assert all("share" not in line for line in lines)
    assert lines[-2]["route"] == "/v1/attempts"


async def test_some_of_the_good_requests_have_a_line_that_tells_the_share(
    open_instance,
    issuer,
    logged,  # noqa: F811
):
    http = await open_instance(TELEMETRY__ACCESS_LOG="true", TELEMETRY__ACCESS_LOG_SHARE="0.5")
    control = Control(http, issuer[0].mint(ACCOUNTS["control-plane"], AUDIENCE))

    for _ in range(100):
        await control.call("POST", "/v1/attempts", json=new_attempt())

    lines = lines_of(logged)
    assert 20 < len(lines) < 80
    assert {line["share"] for line in lines} == {0.5}
