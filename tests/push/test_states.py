"""State documents: replaced only by who knows the version, by operators and by handlers."""

import asyncio

import pytest

from app.domain.commands import Command
from app.domain.errors import AlreadyStarted
from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION
from app.handlers.registry import Context, Registry
from tests.driver import Caller

FIRST = {"If-None-Match": "*"}


async def put(operator, key, document, headers):
    return await operator.call(
        "PUT", f"/v1/state/{key}", json={"document": document}, headers=headers
    )


async def test_document_is_created_read_and_replaced(operator):
    created = await put(operator, "plan:1", {"window": "nightly"}, FIRST)
    read = await operator.call("GET", "/v1/state/plan:1")
    replaced = await put(operator, "plan:1", {"window": None}, {"If-Match": read.headers["ETag"]})

    assert (created.status_code, replaced.status_code) == (201, 200)
    assert (read.headers["ETag"], replaced.headers["ETag"]) == ('"1"', '"2"')
    assert read.json()["document"] == {"window": "nightly"}
    assert replaced.json()["document"] == {"window": None}


@pytest.mark.parametrize(
    ("headers", "status", "reason"),
    [
        ({}, 428, "precondition-missing"),
        ({"If-Match": "*"}, 428, "precondition-missing"),
        ({"If-Match": '"1"', "If-None-Match": "*"}, 428, "precondition-missing"),
        (FIRST, 412, "state-changed"),
        ({"If-Match": '"2"'}, 412, "state-changed"),
        ({"If-Match": "1"}, 412, "state-changed"),
        ({"If-Match": 'W/"1"'}, 412, "state-changed"),
        ({"If-Match": f'"{9**30}"'}, 412, "state-changed"),
    ],
)
async def test_document_of_another_version_is_left_alone(headers, status, reason, operator):
    await put(operator, "key", {"n": 1}, FIRST)

    answer = await put(operator, "key", {"n": 2}, headers)

    assert (answer.status_code, answer.json()["reason"]) == (status, reason)
    assert (await operator.call("GET", "/v1/state/key")).json()["document"] == {"n": 1}


async def test_document_that_is_not_there_is_not_found(operator):
    read = await operator.call("GET", "/v1/state/nothing")
    replaced = await put(operator, "nothing", {}, {"If-Match": '"1"'})

    assert [read.status_code, replaced.status_code] == [404, 404]


@pytest.mark.parametrize("document", [[], "text", {"a": "\x00"}, {"a": "x" * 300_000}, None])
async def test_document_that_cannot_be_stored_is_refused(document, operator):
    answer = await put(operator, "key", document, FIRST)

    assert answer.status_code in {413, 422}


@pytest.mark.parametrize("role", ["runner", "control-plane", "pubsub"])
async def test_documents_are_for_operators_only(role, http, issuer):
    caller = Caller(http, issuer[0].mint(ACCOUNTS[role], AUDIENCE))

    assert (await caller.call("GET", "/v1/state/key")).status_code == 403
    assert (await put(caller, "key", {}, FIRST)).status_code == 403


# --- in a handler ---------------------------------------------------------------------------------


class Count(Command):
    """Count one more."""

    number: int
    """Which one."""


def counting(faults: list[Exception]) -> Registry:
    registry = Registry()

    @registry.handler("ledger.count", Count)
    async def count(context: Context, command: Count) -> None:
        known = await context.state.get("counter")
        numbers = [*known.document["numbers"], command.number] if known else [command.number]
        version = known.version if known else None
        await context.state.put("counter", {"numbers": numbers}, version)
        if faults:
            raise faults.pop()

    return registry


ALLOWED = {"PUSH__SUBSCRIPTIONS": {SUBSCRIPTION: ["ledger.count"]}}


async def test_handlers_that_count_at_once_lose_no_count(
    open_instance, pusher_to, operator_of, sql
):
    http = await open_instance(counting([]), **ALLOWED)
    pusher, operator = pusher_to(http), operator_of(http)

    async def until_done(number: int) -> None:
        identifier = f"00000000-0000-0000-0000-{number:012d}"
        while True:
            answer = await pusher.push("ledger.count", {"number": number}, id=identifier)
            if answer.status_code == 204:
                return

    async with asyncio.timeout(20):
        await asyncio.gather(*(until_done(number) for number in range(8)))

    stored = (await operator.call("GET", "/v1/state/counter")).json()
    assert sorted(stored["document"]["numbers"]) == list(range(8))
    assert stored["version"] == 8


async def test_document_of_a_handler_that_fails_stays_as_it_was(
    open_instance, pusher_to, operator_of
):
    http = await open_instance(counting([AlreadyStarted()]), **ALLOWED)
    pusher, operator = pusher_to(http), operator_of(http)

    await pusher.push("ledger.count", {"number": 1})
    after_failure = await operator.call("GET", "/v1/state/counter")
    await pusher.push("ledger.count", {"number": 2})
    after_success = await operator.call("GET", "/v1/state/counter")

    assert after_failure.status_code == 404
    assert after_success.json()["document"] == {"numbers": [2]}


async def test_document_that_holds_a_secret_is_refused_and_says_where(operator):
    answer = await put(operator, "key", {"token": {"of": "AKIA" + "IOSFODNN7EXAMPLB"}}, FIRST)

    assert (answer.status_code, answer.json()["reason"]) == (422, "secret-in-request")
    assert answer.json()["errors"][0]["pointer"] == "/document/token/of"
