"""Parameters that nobody declared are refused, so that a misspelt filter is noticed."""

import pytest


@pytest.mark.parametrize("path", ["/v1/attempts?statsu=queued", "/v1/runners?kind=ssh&page=2"])
async def test_an_unknown_query_parameter_is_refused_by_name(control, path):
    answer = await control.call("GET", path)

    assert (answer.status_code, answer.json()["reason"]) == (422, "request-invalid")
    assert answer.json()["errors"][0]["pointer"].startswith("/query/")


async def test_a_missing_lease_token_is_answered_like_a_wrong_one(control, runner):
    await control.create()
    await runner.register()
    held = await runner.claim()

    answer = await runner.call("POST", f"/v1/leases/{held.id}:start", json={})

    assert (answer.status_code, answer.json()["reason"]) == (403, "lease-token-invalid")
