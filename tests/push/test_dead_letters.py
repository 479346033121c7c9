"""Dead letters: seen, sent again with their effect once, or put away."""

import asyncio
from uuid import uuid4

import pytest

from app.domain.errors import AlreadyStarted
from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION
from app.handlers.registry import Context, Registry
from app.store import messages
from tests.driver import Caller, new_attempt
from tests.push.conftest import envelope
from tests.push.service import HANDLERS, Add, registry_of_tests

CANARY = "hunter2-canary"


def refusing(faults: list[Exception]) -> Registry:
    """The handlers of the tests, of which `ledger.add` first raises these."""
    registry = Registry()
    inner = registry_of_tests().find("ledger.add")

    @registry.handler("ledger.add", Add)
    async def add(context: Context, command: Add) -> None:
        if faults:
            raise faults.pop(0)
        await inner.run(context, command)

    return registry


@pytest.fixture
def bury(open_instance, pusher_to, operator_of, sql):
    """An instance, and a letter of a message that failed once and would succeed now."""

    async def make(faults=1, number=7, note="", **more):
        registry = refusing([AlreadyStarted() for _ in range(faults)])
        http = await open_instance(registry, **more)
        answer = await pusher_to(http).push_envelope(
            envelope(data={"number": number} | ({"note": note} if note else {}))
        )
        assert answer.status_code == 204
        letter_id = await sql.fetchval("SELECT id FROM dead_letters")
        return http, operator_of(http), str(letter_id)

    return make


async def redrive(operator: Caller, letter_id: str, request_id: str | None = None):
    body = {"request_id": request_id or str(uuid4())}
    return await operator.call("POST", f"/v1/dead-letters/{letter_id}:redrive", json=body)


# --- seen -----------------------------------------------------------------------------------------


async def test_letters_are_listed_in_pages_and_by_reason_and_handler(operator, pusher):
    for number in range(5):
        await pusher.push("attempt.create", {"priority": number})
    await pusher.push_bytes(b"[]")

    async def listed(**query):
        answer = await operator.call("GET", "/v1/dead-letters", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    first = await listed(page_size=4)
    second = await listed(page_size=4, page_token=first["next_page_token"])
    reasons = [item["reason"] for item in first["items"] + second["items"]]
    assert reasons == ["envelope-invalid", *["request-invalid"] * 5]
    assert second["next_page_token"] is None
    assert len((await listed(reason="request-invalid"))["items"]) == 5
    assert len((await listed(handler="attempt.create", state="open"))["items"]) == 5
    assert (await listed(handler="attempt.cancel"))["items"] == []
    assert (await listed(state="discarded"))["items"] == []


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"reason": "a\x00b"}, 422),
        ({"handler": "ä"}, 422),
        ({"state": "lost"}, 422),
        ({"page_size": "0"}, 422),
        ({"page_token": "bm9uZQ=="}, 400),
    ],
)
async def test_list_that_cannot_be_asked_for_is_refused(query, status, operator):
    answer = await operator.call("GET", "/v1/dead-letters", params=query)

    assert answer.status_code == status


async def test_letter_says_what_is_known_of_its_message(operator, pusher, sql):
    data = {"plan_id": "p1", "job_spec_ref": {"password": CANARY}}
    await pusher.push_envelope(envelope("attempt.create", data), messageId="77")
    letter_id = await sql.fetchval("SELECT id FROM dead_letters")

    shown = (await operator.call("GET", f"/v1/dead-letters/{letter_id}")).json()

    assert shown["state"] == "open"
    assert (shown["subscription"], shown["message_id"]) == (SUBSCRIPTION, "77")
    assert shown["payload"] == {"plan_id": "p1", "job_spec_ref": {"password": "***"}}
    assert shown["redrivable"] is False
    assert CANARY not in str(shown)


@pytest.mark.parametrize("role", ["runner", "control-plane", "pubsub"])
async def test_letters_are_for_operators_only(role, http, issuer):
    caller = Caller(http, issuer[0].mint(ACCOUNTS[role], AUDIENCE))

    answers = [
        await caller.call("GET", "/v1/dead-letters"),
        await caller.call("GET", f"/v1/dead-letters/{uuid4()}"),
        await redrive(caller, str(uuid4())),
        await caller.call("POST", f"/v1/dead-letters/{uuid4()}:discard", json={"reason": "none"}),
    ]

    assert [answer.status_code for answer in answers] == [403] * 4


async def test_letter_that_is_not_there_is_not_found(operator):
    answers = [
        await operator.call("GET", f"/v1/dead-letters/{uuid4()}"),
        await redrive(operator, str(uuid4())),
        await operator.call("POST", f"/v1/dead-letters/{uuid4()}:discard", json={"reason": "none"}),
    ]

    assert [answer.status_code for answer in answers] == [404] * 3
    assert {answer.json()["reason"] for answer in answers} == {"dead-letter-not-found"}


# --- sent again -----------------------------------------------------------------------------------


async def test_redriven_letter_has_its_effect(bury, ledger):
    _, operator, letter_id = await bury()

    answer = await redrive(operator, letter_id)

    assert answer.status_code == 200, answer.text
    assert (answer.json()["state"], answer.json()["redrive_outcome"]) == ("redriven", "done")
    assert answer.json()["redriven_by"] == ACCOUNTS["operator"]
    assert await ledger() == [7]


async def test_repeated_redrive_gets_the_same_answer_and_another_one_is_refused(bury, ledger):
    _, operator, letter_id = await bury()
    request_id = str(uuid4())

    first = await redrive(operator, letter_id, request_id)
    repeat = await redrive(operator, letter_id, request_id)
    other = await redrive(operator, letter_id)

    assert first.json() == repeat.json()
    assert (other.status_code, other.json()["reason"]) == (409, "already-closed")
    assert await ledger() == [7]


async def test_redrives_at_once_on_two_instances_have_one_effect(
    bury, open_instance, ledger, issuer
):
    _, operator, letter_id = await bury()
    token = issuer[0].mint(ACCOUNTS["operator"], AUDIENCE)
    second = Caller(await open_instance(refusing([])), token)

    answers = await asyncio.gather(
        *(redrive(caller, letter_id) for caller in (operator, second) for _ in range(5))
    )

    assert sorted(answer.status_code for answer in answers).count(200) == 1
    assert {answer.status_code for answer in answers} <= {200, 409, 503}
    assert await ledger() == [7]


async def test_redrive_that_never_learnt_its_outcome_has_one_effect(bury, ledger, monkeypatch):
    http, operator, letter_id = await bury()
    database = http._transport.app.state.services.database
    commit, request_id = database._commit, str(uuid4())

    async def commit_and_forget(connection) -> None:
        await commit(connection)
        if await ledger():
            monkeypatch.undo()
            raise TimeoutError("the answer was lost")

    monkeypatch.setattr(database, "_commit", commit_and_forget)
    lost = await redrive(operator, letter_id, request_id)
    again = await redrive(operator, letter_id, request_id)

    assert lost.status_code >= 500
    assert (again.status_code, again.json()["redrive_outcome"]) == (200, "done")
    assert await ledger() == [7]


async def test_redrive_of_a_message_that_was_done_meanwhile_has_no_second_effect(
    bury, pusher_to, ledger, sql
):
    http, operator, letter_id = await bury()
    sent = await sql.fetchrow("SELECT envelope_id, payload FROM dead_letters")
    await pusher_to(http).push_envelope(envelope(data={"number": 7}, id=str(sent["envelope_id"])))

    answer = await redrive(operator, letter_id)

    assert answer.json()["redrive_outcome"] == "duplicate"
    assert await ledger() == [7]


async def test_delivery_after_a_redrive_has_no_second_effect(bury, pusher_to, ledger, sql):
    http, operator, letter_id = await bury()
    envelope_id = await sql.fetchval("SELECT envelope_id FROM dead_letters")
    await redrive(operator, letter_id)

    answer = await pusher_to(http).push_envelope(envelope(data={"number": 7}, id=envelope_id))

    assert answer.status_code == 204
    assert await ledger() == [7]


async def test_redrive_that_fails_again_leaves_the_letter_open_with_its_reason(bury, ledger):
    _, operator, letter_id = await bury(faults=2)

    refused = await redrive(operator, letter_id)
    shown = (await operator.call("GET", f"/v1/dead-letters/{letter_id}")).json()
    done = await redrive(operator, letter_id)

    assert (refused.status_code, refused.json()["reason"]) == (409, "already-started")
    assert (shown["state"], shown["redrives"]) == ("open", 1)
    assert done.status_code == 200
    assert await ledger() == [7]


async def test_command_with_a_key_of_its_own_is_redriven_once(
    open_instance, pusher_to, operator_of, sql
):
    forbidding = await open_instance(PUSH__SUBSCRIPTIONS={SUBSCRIPTION: []})
    await pusher_to(forbidding).push("attempt.create", new_attempt())
    letter_id = await sql.fetchval("SELECT id FROM dead_letters")
    operator = operator_of(await open_instance())

    refused = await redrive(operator_of(forbidding), letter_id)
    answers = await asyncio.gather(*(redrive(operator, letter_id) for _ in range(5)))

    assert (refused.status_code, refused.json()["reason"]) == (403, "handler-not-allowed")
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409, 409]
    assert await sql.fetchval("SELECT count(*) FROM execution_attempts") == 1


async def test_redrive_needs_a_request_id(operator):
    for body in ({}, {"request_id": "mine"}, {"request_id": None}):
        answer = await operator.call("POST", f"/v1/dead-letters/{uuid4()}:redrive", json=body)

        assert answer.status_code == 422


@pytest.mark.parametrize("note", [f"the password={CANARY}", "x" * 70_000])
async def test_letter_whose_message_was_not_kept_whole_is_not_redrivable(note, bury, ledger):
    _, operator, letter_id = await bury(note=note)

    answer = await redrive(operator, letter_id)

    assert (answer.status_code, answer.json()["reason"]) == (409, "not-redrivable")
    assert await ledger() == []


# --- put away -------------------------------------------------------------------------------------


async def test_discarded_letter_has_no_effect_any_more(bury, ledger):
    _, operator, letter_id = await bury()
    path = f"/v1/dead-letters/{letter_id}:discard"

    first = await operator.call("POST", path, json={"reason": "sent again by hand"})
    again = await operator.call("POST", path, json={"reason": "sent again by hand"})
    refused = await redrive(operator, letter_id)

    assert (first.status_code, first.json()["state"]) == (200, "discarded")
    assert again.json() == first.json()
    assert (refused.status_code, refused.json()["reason"]) == (409, "already-closed")
    assert await ledger() == []


async def test_redriven_letter_cannot_be_discarded(bury):
    _, operator, letter_id = await bury()
    await redrive(operator, letter_id)

    answer = await operator.call(
        "POST", f"/v1/dead-letters/{letter_id}:discard", json={"reason": "too late"}
    )

    assert (answer.status_code, answer.json()["reason"]) == (409, "already-closed")


async def test_discard_and_redrive_at_once_end_in_one_of_the_two(bury, ledger):
    _, operator, letter_id = await bury()

    discarded, redriven = await asyncio.gather(
        operator.call("POST", f"/v1/dead-letters/{letter_id}:discard", json={"reason": "either"}),
        redrive(operator, letter_id),
    )

    assert sorted([discarded.status_code, redriven.status_code]) == [200, 409]
    assert await ledger() == ([7] if redriven.status_code == 200 else [])


async def test_letter_that_is_discarded_before_its_redrive_commits_has_no_effect(
    bury, ledger, monkeypatch
):
    _, operator, letter_id = await bury()
    enter = messages.enter

    async def late(conn, *given):
        await operator.call(
            "POST", f"/v1/dead-letters/{letter_id}:discard", json={"reason": "a moment before"}
        )
        return await enter(conn, *given)

    monkeypatch.setattr(messages, "enter", late)
    answer = await redrive(operator, letter_id)

    assert (answer.status_code, answer.json()["reason"]) == (409, "already-closed")
    assert await ledger() == []


async def test_closed_letter_whose_message_fails_again_is_open_again(bury, pusher_to, sql):
    http, operator, letter_id = await bury(faults=2)
    envelope_id = await sql.fetchval("SELECT envelope_id FROM dead_letters")
    await operator.call("POST", f"/v1/dead-letters/{letter_id}:discard", json={"reason": "for now"})

    await pusher_to(http).push_envelope(envelope(data={"number": 7}, id=envelope_id))

    shown = (await operator.call("GET", f"/v1/dead-letters/{letter_id}")).json()
    assert (shown["state"], shown["deliveries"]) == ("open", 2)


async def test_open_letters_are_a_metric(bury):
    http, operator, letter_id = await bury()

    before = (await http.get("/metrics")).text
    await redrive(operator, letter_id)
    after = (await http.get("/metrics")).text

    gauge = 'execution_plane_dead_letters_open{reason="already-started"} 1.0'
    assert gauge in before
    assert gauge not in after
    assert 'execution_plane_dead_letters_closed_total{outcome="redriven"} 1.0' in after


# --- a message that is done is never given up -----------------------------------------------------


async def test_message_that_is_done_after_all_gets_no_dead_letter(
    open_instance, pusher_to, ledger, sql, monkeypatch
):
    """Its last failure is counted late: another instance has done it in the meantime."""
    http = await open_instance(
        refusing([RuntimeError("once")]),
        PUSH__FAILURES_BEFORE_DEAD_LETTER=1,
        PUSH__FAILURE_SECONDS_BEFORE_DEAD_LETTER=0,
    )
    other, message = await open_instance(), envelope()
    count_failure = messages.count_failure

    async def late(conn, *given):
        await pusher_to(other).push_envelope(message)
        return await count_failure(conn, *given)

    monkeypatch.setattr(messages, "count_failure", late)
    answer = await pusher_to(http).push_envelope(message)

    assert answer.status_code == 204
    assert await ledger() == [1]
    assert await sql.fetchval("SELECT count(*) FROM dead_letters") == 0


def test_handlers_of_the_tests_are_all_there():
    assert set(HANDLERS) <= set(registry_of_tests().names)
