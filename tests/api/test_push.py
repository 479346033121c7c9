"""What a pushed message is answered, and what is left of it: one row of the table a test."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import httpx
import pytest

from app.domain import errors
from app.domain.commands import Command
from app.domain.envelope import Envelope
from app.domain.ids import new_id
from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION
from app.handlers import all_handlers
from app.handlers.registry import Context, Registry
from app.settings import load
from app.wiring import open_services
from tests.conftest import environment, serve_in_process
from tests.driver import Pusher, new_attempt

CANARY = "ghp_hunter2CanaryhUnter2cAnaryhuNter20001"


@pytest.fixture
def push_to(issuer):
    """Pub/Sub in front of some instance."""

    def make(http: httpx.AsyncClient) -> Pusher:
        return Pusher(http, issuer[0].mint(ACCOUNTS["pubsub"], AUDIENCE), SUBSCRIPTION)

    return make


def envelope(to: str = "attempt.create", data: object = None, **fields: object) -> dict:
    return {"v": 1, "to": to, "id": str(uuid4()), "data": data or new_attempt(), **fields}


async def dead_letters(sql) -> list[dict]:
    return [dict(row) for row in await sql.fetch("SELECT * FROM dead_letters")]


async def count(sql, table: str) -> int:
    return await sql.fetchval(f"SELECT count(*) FROM {table}")


# --- done -----------------------------------------------------------------------------------------


async def test_message_that_is_done_is_acknowledged_with_an_empty_204(pusher, sql):
    answer = await pusher.push("attempt.create", new_attempt())

    assert (answer.status_code, answer.content) == (204, b"")
    assert await count(sql, "execution_attempts") == 1
    assert await count(sql, "dead_letters") == 0


async def test_message_without_a_key_is_keyed_by_its_envelope(pusher, sql):
    data = new_attempt()
    del data["idempotency_key"]
    identifier = str(uuid4())

    await pusher.push("attempt.create", data, id=identifier)
    await pusher.push("attempt.create", data, id=identifier)

    keys = await sql.fetch("SELECT idempotency_key FROM execution_attempts")
    assert [row["idempotency_key"] for row in keys] == [identifier]


async def test_redelivered_message_has_one_effect(pusher, sql):
    message = envelope()

    answers = [await pusher.push_envelope(message, messageId="1") for _ in range(3)]

    assert [answer.status_code for answer in answers] == [204, 204, 204]
    assert await count(sql, "execution_attempts") == 1
    assert await count(sql, "attempt_events") == 1


async def test_equal_messages_at_once_have_one_effect_on_two_instances(
    pusher, open_instance, push_to, sql
):
    other = push_to(await open_instance())
    message = envelope()

    answers = await asyncio.gather(
        *(one.push_envelope(message) for one in [pusher, other] for _ in range(10))
    )

    assert {answer.status_code for answer in answers} <= {204, 503}
    assert await count(sql, "execution_attempts") == 1
    assert (await pusher.push_envelope(message)).status_code == 204


@pytest.mark.parametrize(
    "message",
    [
        {"messageId": "1"},
        {"message_id": "1"},
        {"messageId": "1", "message_id": "1", "publishTime": "2021-02-26T19:13:55.749Z"},
        {"messageId": "1", "attributes": {"key": "value"}, "orderingKey": "k"},
        {"messageId": "1", "attributes": {"key": 7}, "publishTime": "yesterday"},
        {"messageId": "1", "publishTime": 5, "publish_time": None},
        {"messageId": 7, "unknown": {"deeply": ["nested"]}},
        {},
    ],
)
async def test_everything_around_the_data_may_be_missing_or_strange(message, pusher, sql):
    data = base64.b64encode(json.dumps(envelope(unknown="field")).encode()).decode()

    answer = await pusher.push_message({"data": data, **message}, deliveryAttempt=3, more=[1])

    assert answer.status_code == 204
    assert await count(sql, "execution_attempts") == 1


@pytest.mark.parametrize("published", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.9Z"])
@pytest.mark.parametrize("offset", ["", "+14:00", "-14:00"])
async def test_any_time_of_publishing_can_be_read(published, offset, pusher, runner, control, sql):
    await control.create()
    held = await (await runner.register()).start()
    beat = {"session_id": runner.session_id, "sequence": 1, "lease_id": held.id}
    moment = published.replace("Z", offset) if offset else published

    answer = await pusher.push(
        "lease.heartbeat", beat | {"lease_token": held.token}, publishTime=moment
    )

    assert answer.status_code == 204
    assert await count(sql, "attempt_heartbeats") == 1


# --- overtaken ------------------------------------------------------------------------------------


async def test_beat_of_an_ended_lease_is_acknowledged_and_changes_nothing(
    pusher, runner, control, sql
):
    await control.create()
    held = await (await runner.register()).start()
    await held.complete()
    before = await control.get(held.attempt_id)
    beat = {"session_id": runner.session_id, "sequence": 1, "phase": "executing"}

    answer = await pusher.push(
        "lease.heartbeat", {"lease_id": held.id, "lease_token": held.token, **beat}
    )

    assert answer.status_code == 204
    assert await control.get(held.attempt_id) == before
    assert await count(sql, "attempt_heartbeats") == await count(sql, "dead_letters") == 0


async def test_beat_with_an_older_sequence_is_acknowledged_and_changes_nothing(
    pusher, runner, control, sql
):
    await control.create()
    held = await (await runner.register()).start()
    held.sequence = 8
    await held.beat(phase="executing", progress_percent=90)
    beat = {"session_id": runner.session_id, "sequence": 3, "phase": "completing"}

    answer = await pusher.push(
        "lease.heartbeat",
        {"lease_id": held.id, "lease_token": held.token, "progress_percent": 1, **beat},
    )

    [lease] = await control.list_of(held.attempt_id, "leases")
    assert answer.status_code == 204
    assert (lease["phase"], lease["progress_percent"]) == ("executing", 90)
    assert await count(sql, "attempt_heartbeats") == 1


async def test_second_completion_is_acknowledged_and_the_first_stays(pusher, runner, control, sql):
    await control.create()
    held = await (await runner.register()).start()
    await held.complete("succeeded")

    answer = await pusher.push(
        "lease.complete", {"lease_id": held.id, "lease_token": held.token, "outcome": "cancelled"}
    )

    assert answer.status_code == 204
    assert await control.status(held.attempt_id) == "succeeded"
    assert await count(sql, "dead_letters") == 0


async def test_registration_of_a_replaced_session_is_acknowledged_and_changes_nothing(
    pusher, runner, sql
):
    await runner.register()
    first = {"runner_id": runner.id, "session_id": runner.session_id, **runner.profile}
    runner.session_id = str(uuid4())
    await runner.register()

    answer = await pusher.push("runner.register", first)

    assert answer.status_code == 204
    assert str(await sql.fetchval("SELECT session_id FROM runner_instances")) == runner.session_id
    assert await count(sql, "dead_letters") == 0


async def test_time_of_publishing_can_only_shorten_a_renewal(pusher, runner, control, sql):
    await control.create()
    held = await (await runner.register()).start()
    ends_at = "SELECT expires_at - clock_now() AS left FROM runner_leases"
    await sql.execute("UPDATE runner_leases SET expires_at = clock_now() + interval '9 s'")

    left = []
    for sequence, ago in enumerate([3600, 25, 0, -3600], 1):
        await pusher.push(
            "lease.heartbeat",
            {
                "lease_id": held.id,
                "lease_token": held.token,
                "session_id": runner.session_id,
                "sequence": sequence,
            },
            publishTime=(datetime.now(UTC) - timedelta(seconds=ago)).isoformat(),
        )
        left.append((await sql.fetchval(ends_at)).total_seconds())

    long_ago, too_long_ago, now, tomorrow = left
    assert long_ago <= 9
    assert too_long_ago <= 9
    assert 20 < now <= 30
    assert 20 < tomorrow <= 30


# --- can never succeed ----------------------------------------------------------------------------

NOT_ENVELOPES = {
    "no_json": b"{" + CANARY.encode(),
    "no_utf8": b"\xff" + CANARY.encode(),
    "array": json.dumps([CANARY]).encode(),
    "text": json.dumps(CANARY).encode(),
    "null": b"null",
    "too_deep": b"[" * 5000 + b"]" * 5000,
    "nan": b'{"v": NaN, "x": "' + CANARY.encode() + b'"}',
    "huge_number": b'{"v": 1e999, "x": "' + CANARY.encode() + b'"}',
    "endless_number": b'{"v": ' + b"9" * 5000 + b"}",
    **{
        name: json.dumps(envelope(data={"x": CANARY}) | fields).encode()
        for name, fields in {
            "newer_version": {"v": 99},
            "version_as_text": {"v": "1"},
            "version_true": {"v": True},
            "no_version": {"v": None},
            "no_handler": {"to": None},
            "long_handler": {"to": "x" * 200},
            "empty_handler": {"to": ""},
            "handler_not_ascii": {"to": "ä"},
            "handler_with_nul": {"to": "attempt\x00create"},
            "handler_with_line_feed": {"to": "attempt.create\n"},
            "no_id": {"id": None},
            "id_not_uuid": {"id": CANARY},
            "long_id": {"id": "1" * 10_000},
            "id_a_number": {"id": 7},
        }.items()
    },
    "no_data": json.dumps({"v": 1, "to": "attempt.create", "id": str(uuid4())}).encode(),
}


@pytest.mark.parametrize("content", NOT_ENVELOPES)
async def test_message_that_is_no_envelope_is_acknowledged_and_recorded(content, pusher, sql):
    answer = await pusher.push_bytes(NOT_ENVELOPES[content], messageId="77")

    [letter] = await dead_letters(sql)
    assert (answer.status_code, answer.content) == (204, b"")
    assert letter["reason"] in {"envelope-invalid", "handler-not-allowed"}
    assert letter["message_id"] == "77"
    assert letter["subscription"] == SUBSCRIPTION
    assert letter["payload_bytes"] == len(NOT_ENVELOPES[content])
    assert CANARY not in str(letter)
    assert await count(sql, "message_failures") == 0


@pytest.mark.parametrize(
    "message",
    [
        {"data": f"{CANARY}!"},
        {"data": "aGk*!="},
        {"data": "aGk"},
        {"data": "ä" + CANARY},
        {"data": 7},
        {"data": ""},
        {"attributes": {"key": CANARY}},
    ],
)
async def test_message_whose_data_cannot_be_decoded_is_acknowledged_and_recorded(
    message, pusher, sql
):
    answer = await pusher.push_message({"messageId": "77", **message})

    [letter] = await dead_letters(sql)
    assert answer.status_code == 204
    assert (letter["reason"], letter["message_id"]) == ("envelope-invalid", "77")
    assert CANARY not in str(letter)


INVALID_DATA = {
    "text": CANARY,
    "list": [CANARY],
    "null": None,
    "unknown_field": new_attempt(concurency_key=CANARY),
    "name_that_is_a_value": new_attempt(**{CANARY: 1}),
    "name_with_nul": new_attempt(**{"a\x00b": CANARY}),
    "name_with_lone_surrogate": new_attempt(**{"\ud800": CANARY}),
    "label_that_is_a_value": new_attempt(placement={"labels": {f"{CANARY} ": "x"}}),
    "long_name": new_attempt(**{"x" * 5000: CANARY}),
    "unknown_job_type": new_attempt(job_type=CANARY),
    "negative_priority": new_attempt(priority=-1, job_spec_ref={"token": CANARY}),
    "huge_timeout": new_attempt(timeout_seconds=10**30),
    "id_not_uuid": new_attempt(plan_id=CANARY),
    "nul_in_value": new_attempt(job_spec_ref={"x": f"{CANARY}\x00"}),
    "lone_surrogate_in_value": new_attempt(idempotency_key=f"{CANARY}\ud800"),
    "missing_field": {"idempotency_key": CANARY},
}


@pytest.mark.parametrize("data", INVALID_DATA)
async def test_message_with_invalid_data_is_acknowledged_and_recorded_without_its_values(
    data, pusher, sql
):
    answer = await pusher.push("attempt.create", INVALID_DATA[data])

    [letter] = await dead_letters(sql)
    assert answer.status_code == 204
    assert (letter["reason"], letter["handler"]) == ("request-invalid", "attempt.create")
    assert CANARY not in str(letter)
    assert await count(sql, "execution_attempts") == 0


async def test_payload_of_a_dead_letter_is_kept_without_its_secrets(pusher, sql):
    await pusher.push("attempt.create", {"plan_id": CANARY, "priority": 3, "nothing": None})

    [letter] = await dead_letters(sql)
    assert json.loads(letter["payload"]) == {"plan_id": "***", "priority": 3, "nothing": None}


async def test_create_with_a_secret_is_a_dead_letter_without_it(pusher, sql):
    await pusher.push("attempt.create", new_attempt(job_spec_ref={"env": {"TOKEN": CANARY}}))

    [letter] = await dead_letters(sql)
    assert (letter["reason"], letter["redrivable"]) == ("secret-in-request", False)
    assert CANARY not in str(letter)


@pytest.mark.parametrize("field", ["to", "messageId", "attribute"])
async def test_secret_in_the_frame_of_a_message_is_not_kept(field, pusher, sql):
    envelope = {"v": 1, "to": "no.handler", "id": str(uuid4()), "data": {}}
    if field == "to":
        envelope["to"] = CANARY
    more = {"messageId": CANARY} if field == "messageId" else {"attributes": {CANARY: CANARY}}
    await pusher.push_envelope(envelope, **more)

    assert CANARY not in str(await dead_letters(sql))
    assert CANARY not in str(await sql.fetch("SELECT * FROM message_failures"))


async def test_dead_letter_that_is_delivered_again_is_counted_on_its_row(pusher, sql):
    message = envelope(data={"x": 1})

    for _ in range(3):
        await pusher.push_envelope(message)

    [letter] = await dead_letters(sql)
    assert letter["deliveries"] == 3


async def test_used_key_with_another_request_is_recorded(pusher, control, sql):
    attempt = await control.create()
    other = new_attempt(idempotency_key=attempt["idempotency_key"])

    answer = await pusher.push("attempt.create", other)

    [letter] = await dead_letters(sql)
    assert (answer.status_code, letter["reason"]) == (204, "idempotency-key-reused")


@pytest.mark.parametrize("command", ["lease.heartbeat", "lease.complete", "log.append"])
async def test_command_with_a_wrong_lease_token_is_recorded_without_it(
    command, pusher, runner, control, sql
):
    await control.create()
    held = await (await runner.register()).start()
    data = {
        "lease.heartbeat": {"session_id": runner.session_id, "sequence": 1},
        "lease.complete": {"outcome": "succeeded"},
        "log.append": {"stream": "stdout", "offset": 0, "data_base64": "aGk="},
    }[command]

    answer = await pusher.push(command, {"lease_id": held.id, "lease_token": CANARY, **data})

    [letter] = await dead_letters(sql)
    assert (answer.status_code, letter["reason"]) == (204, "lease-token-invalid")
    assert CANARY not in str(letter)
    assert await control.status(held.attempt_id) == "running"


async def test_handler_that_the_subscription_may_not_call_is_recorded(
    open_instance, push_to, control, sql
):
    pusher = push_to(await open_instance(PUSH__SUBSCRIPTIONS={SUBSCRIPTION: ["lease.heartbeat"]}))

    answer = await pusher.push("attempt.create", new_attempt())

    [letter] = await dead_letters(sql)
    assert (answer.status_code, letter["reason"]) == (204, "handler-not-allowed")
    assert await count(sql, "execution_attempts") == 0


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"[]", 400), (json.dumps(envelope(data={"x": 1})).encode(), 422)],
    ids=["no_envelope", "invalid_data"],
)
async def test_poison_can_be_left_to_the_subscriptions_own_dead_letter_topic(
    content, status, open_instance, push_to, sql
):
    pusher = push_to(await open_instance(PUSH__POISON="nack"))

    answer = await pusher.push_bytes(content)

    assert (answer.status_code, answer.content) == (status, b"")
    assert await count(sql, "dead_letters") == 0


# --- may succeed later ----------------------------------------------------------------------------


async def test_unknown_handler_is_waited_for_and_in_the_end_recorded(open_instance, push_to, sql):
    http = await open_instance(
        PUSH__SUBSCRIPTIONS={SUBSCRIPTION: ["future.handler"]},
        PUSH__FAILURES_BEFORE_DEAD_LETTER=3,
        PUSH__FAILURE_SECONDS_BEFORE_DEAD_LETTER=0,
    )
    message = envelope("future.handler", {"x": CANARY})

    answers = [await push_to(http).push_envelope(message) for _ in range(3)]

    [letter] = await dead_letters(sql)
    assert [answer.status_code for answer in answers] == [503, 503, 204]
    assert (letter["reason"], letter["failures"]) == ("handler-unknown", 3)
    assert CANARY not in str(letter)
    assert await count(sql, "message_failures") == 0


async def test_failures_in_quick_succession_are_no_reason_to_give_up(open_instance, push_to, sql):
    http = await open_instance(
        PUSH__SUBSCRIPTIONS={SUBSCRIPTION: ["future.handler"]},
        PUSH__FAILURES_BEFORE_DEAD_LETTER=3,
        PUSH__FAILURE_SECONDS_BEFORE_DEAD_LETTER=600,
    )
    message = envelope("future.handler")

    answers = [await push_to(http).push_envelope(message) for _ in range(5)]
    await sql.execute("UPDATE message_failures SET first_failed_at = now() - interval '601 s'")
    last = await push_to(http).push_envelope(message)

    assert {answer.status_code for answer in answers} == {503}
    assert last.status_code == 204
    assert [letter["failures"] for letter in await dead_letters(sql)] == [6]


@pytest.mark.parametrize(
    ("command", "data", "reason"),
    [
        (
            "runner.report_status",
            {
                "runner_id": "nobody",
                "session_id": str(uuid4()),
                "sequence": 1,
                "status": "ready",
                "capacity_total": 1,
            },
            "runner-not-found",
        ),
        ("attempt.cancel", {"attempt_id": str(uuid4())}, "attempt-not-found"),
    ],
)
async def test_what_a_message_speaks_of_may_still_come(command, data, reason, pusher, sql):
    answer = await pusher.push(command, data)

    assert answer.status_code == 503
    assert await sql.fetchval("SELECT last_reason FROM message_failures") == reason
    assert await count(sql, "dead_letters") == 0


# --- handlers of the test's own -------------------------------------------------------------------


class Add(Command):
    amount: int


@pytest.fixture
async def effects(sql):
    """A table that a handler without any idempotence of its own adds rows to."""
    await sql.execute("CREATE TABLE effects (amount integer)")
    yield lambda: sql.fetchval("SELECT coalesce(sum(amount), 0) FROM effects")
    await sql.execute("DROP TABLE effects")


class Adding:
    """One handler, `effects.add`: it adds a row, then does what the test wants."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.then: Callable[[], Awaitable[object]] | None = None

        @self.registry.handler("effects.add", Add)
        async def add(context: Context, command: Add) -> None:
            assert context.connection is not None
            await context.connection.execute("INSERT INTO effects VALUES ($1)", command.amount)
            if self.then is not None:
                await self.then()


def registry_of(then=None) -> Registry:
    adding = Adding()
    adding.then = then
    return adding.registry


ADDING = {SUBSCRIPTION: ["effects.add"]}


@pytest.fixture(scope="module")
async def adding_instance(worker_database, objects, issuer):
    """An instance with that handler, for all tests of this module that need no other settings."""
    adding = Adding()
    variables = environment(worker_database, objects, issuer, PUSH__SUBSCRIPTIONS=ADDING)
    async with (
        open_services(load(variables)) as opened,
        serve_in_process(opened, adding.registry) as client,
    ):
        yield adding, client


@pytest.fixture
def push_adding(adding_instance, push_to, database_url):
    """Pub/Sub in front of a handler that adds a row and then does what is given here."""
    adding, client = adding_instance

    def make(then=None) -> Pusher:
        adding.then = then
        return push_to(client)

    return make


async def test_handler_without_a_key_of_its_own_has_one_effect_on_two_instances(
    open_instance, push_to, effects, sql
):
    instances = [
        push_to(await open_instance(registry_of(), PUSH__SUBSCRIPTIONS=ADDING)) for _ in range(2)
    ]
    message = envelope("effects.add", {"amount": 5})

    answers = await asyncio.gather(
        *(one.push_envelope(message) for one in instances for _ in range(10))
    )
    afterwards = [await one.push_envelope(message) for one in instances]

    assert {answer.status_code for answer in answers} <= {204, 503}
    assert [answer.status_code for answer in afterwards] == [204, 204]
    assert await effects() == 5
    assert await count(sql, "processed_messages") == 1
    assert await count(sql, "message_failures") == 0


async def test_the_same_message_is_known_by_its_content_and_not_by_its_spelling(
    push_adding, effects
):
    pusher = push_adding()
    identifier = str(uuid4())
    spellings = [
        {"v": 1, "to": "effects.add", "id": identifier, "data": {"amount": 5}},
        {"data": {"amount": 5}, "id": identifier.upper(), "to": "effects.add", "v": 1, "more": 0},
    ]

    for spelling in spellings:
        assert (await pusher.push_envelope(spelling)).status_code == 204

    assert await effects() == 5


async def test_different_messages_may_share_an_id(push_adding, effects):
    pusher = push_adding()
    identifier = uuid4()

    await pusher.push("effects.add", {"amount": 5}, id=identifier)
    await pusher.push("effects.add", {"amount": 7}, id=identifier)

    assert await effects() == 12


async def test_message_is_still_known_after_the_server_key_was_changed(
    open_instance, push_to, effects
):
    secrets = {"k1": "the first secret, long enough to be one", "k2": "another, just as long as it"}
    secrets["k2"] += " must be to be accepted"
    message = envelope("effects.add", {"amount": 5})

    for current in ("k1", "k2", "k1"):
        http = await open_instance(
            registry_of(),
            PUSH__SUBSCRIPTIONS=ADDING,
            KEYS__CURRENT=current,
            KEYS__SECRETS=secrets,
        )
        assert (await push_to(http).push_envelope(message)).status_code == 204

    assert await effects() == 5


async def test_message_that_is_being_worked_on_comes_back_until_that_is_done(
    push_adding, effects, sql
):
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await go_on.wait()

    pusher = push_adding(wait)
    message = envelope("effects.add", {"amount": 5})

    first = asyncio.create_task(pusher.push_envelope(message))
    await reached.wait()
    meanwhile = await pusher.push_envelope(message)
    go_on.set()

    assert meanwhile.status_code == 503
    assert (await first).status_code == 204
    assert (await pusher.push_envelope(message)).status_code == 204
    assert await effects() == 5
    assert await count(sql, "message_failures") == 0


class Bug(Exception):
    pass


@pytest.mark.parametrize("bug", [Bug, KeyError, OSError, TimeoutError, ConnectionError, ValueError])
async def test_handler_that_raises_is_counted_and_leaves_nothing(bug, push_adding, effects, sql):
    faults = [bug(CANARY), bug(CANARY)]

    async def fail() -> None:
        if faults:
            raise faults.pop()

    pusher = push_adding(fail)
    message = envelope("effects.add", {"amount": 5})

    answers = [await pusher.push_envelope(message) for _ in range(2)]
    failures = await sql.fetch("SELECT * FROM message_failures")
    left = await effects()
    last = await pusher.push_envelope(message)

    assert [answer.status_code for answer in answers] == [503, 503]
    assert [(row["failures"], row["last_reason"]) for row in failures] == [(2, "handler-failed")]
    assert CANARY not in str(failures)
    assert left == 0
    assert last.status_code == 204
    assert await effects() == 5


async def test_handler_that_keeps_failing_is_a_dead_letter_in_the_end(
    open_instance, push_to, effects, sql
):
    async def fail() -> None:
        raise Bug(CANARY)

    http = await open_instance(
        registry_of(fail),
        PUSH__SUBSCRIPTIONS=ADDING,
        PUSH__FAILURES_BEFORE_DEAD_LETTER=2,
        PUSH__FAILURE_SECONDS_BEFORE_DEAD_LETTER=0,
    )
    message = envelope("effects.add", {"amount": 5})

    answers = [await push_to(http).push_envelope(message) for _ in range(2)]

    [letter] = await dead_letters(sql)
    assert [answer.status_code for answer in answers] == [503, 204]
    assert (letter["reason"], letter["failures"]) == ("handler-failed", 2)
    assert CANARY not in str(letter)
    assert await effects() == 0


async def test_handler_that_does_not_end_in_time_is_counted_and_leaves_nothing(
    open_instance, push_to, effects, sql
):
    http = await open_instance(
        registry_of(asyncio.Event().wait),
        PUSH__SUBSCRIPTIONS=ADDING,
        PUSH__HANDLER_TIMEOUT_SECONDS=0.2,
    )

    answer = await push_to(http).push("effects.add", {"amount": 5})

    assert answer.status_code == 503
    assert await sql.fetchval("SELECT last_reason FROM message_failures") == "handler-failed"
    assert await effects() == 0
    assert await count(sql, "processed_messages") == 0


@pytest.mark.parametrize(
    "trouble",
    [
        errors.DatabaseUnavailable,
        errors.OutcomeUnknown,
        errors.ObjectStoreUnavailable,
        errors.Overloaded,
        errors.Draining,
    ],
)
async def test_our_own_trouble_brings_the_message_back_and_is_never_counted(
    trouble, push_adding, effects, sql
):
    async def fail() -> None:
        raise trouble

    pusher = push_adding(fail)

    answer = await pusher.push("effects.add", {"amount": 5})

    assert answer.status_code == 503
    assert await count(sql, "message_failures") == await count(sql, "dead_letters") == 0
    assert await effects() == 0


async def test_refusal_by_a_handler_undoes_its_effect_and_is_recorded(push_adding, effects, sql):
    async def refuse() -> None:
        raise errors.AlreadyStarted

    pusher = push_adding(refuse)

    answer = await pusher.push("effects.add", {"amount": 5})

    [letter] = await dead_letters(sql)
    assert (answer.status_code, letter["reason"]) == (204, "already-started")
    assert await effects() == 0


async def test_message_that_keeps_killing_its_process_is_recorded(
    push_adding, effects, services, sql
):
    pusher = push_adding()
    message = envelope("effects.add", {"amount": 5})
    digest = Envelope(1, "effects.add", message["id"], message["data"]).digest(services.keys)
    await sql.execute(
        "INSERT INTO message_failures (message_digest, handler, deaths, working_process, "
        "working_since) VALUES ($1, 'effects.add', 2, $2, now() - interval '1 h')",
        digest,
        new_id(),
    )

    answer = await pusher.push_envelope(message)

    assert answer.status_code == 204
    assert len(await dead_letters(sql)) == 1
    assert await effects() == 0


async def test_database_that_is_away_is_nobodys_fault_but_ours(open_instance, push_to):
    http = await open_instance(DATABASE__URL="postgresql://nobody@127.0.0.1:1/nothing")

    answers = [
        await push_to(http).push("attempt.create", new_attempt()),
        await push_to(http).push("attempt.create", {}),
        await push_to(http).push_bytes(b"[]"),
        await push_to(http).push("attempt.uncreate", {}),
    ]

    assert [answer.status_code for answer in answers] == [503] * 4


# --- before there is a message --------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"{}",
        b"7",
        b'{"message": null}',
        b'{"message": []}',
        json.dumps(envelope()).encode(),
        b"[" * 100_000,
    ],
)
async def test_body_that_is_no_delivery_is_refused(body, pusher, sql):
    answer = await pusher.call("POST", "/push/pubsub", content=body)

    assert (answer.status_code, answer.content) == (400, b"")
    assert await count(sql, "dead_letters") == 0


@pytest.mark.parametrize("subscription", ["projects/other/subscriptions/x", "", None, 7])
async def test_unknown_subscription_is_refused_and_nothing_is_kept(subscription, pusher, sql):
    pusher.subscription = subscription

    answer = await pusher.push("attempt.create", new_attempt())

    assert (answer.status_code, answer.content) == (403, b"")
    assert await count(sql, "execution_attempts") == await count(sql, "dead_letters") == 0


@pytest.mark.parametrize("declared", [True, False])
async def test_body_larger_than_any_message_is_refused(declared, pusher, sql):
    async def pieces():
        for _ in range(17):
            yield b" " * 1024 * 1024

    content = b" " * (16 * 1024 * 1024 + 1) if declared else pieces()

    answer = await pusher.call("POST", "/push/pubsub", content=content)

    assert answer.status_code == 413
    assert await count(sql, "dead_letters") == 0


async def test_compressed_body_is_refused(pusher):
    answer = await pusher.call(
        "POST", "/push/pubsub", content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"}
    )

    assert answer.status_code == 415


@pytest.mark.parametrize("role", ["control-plane", "runner", "operator"])
async def test_token_of_another_role_may_not_push(role, http, issuer, sql):
    pusher = Pusher(http, issuer[0].mint(ACCOUNTS[role], AUDIENCE), SUBSCRIPTION)

    answer = await pusher.push("attempt.create", new_attempt())

    assert (answer.status_code, answer.content) == (403, b"")
    assert await count(sql, "execution_attempts") == 0


@pytest.mark.parametrize("header", [None, "", "Basic eDp5", "Bearer ", "Bearer x", "Bearer a.b.c"])
async def test_push_without_an_acceptable_token_is_refused_before_its_body_is_read(
    header, http, sql
):
    async def never_read():
        raise AssertionError("the body was read")
        yield b""

    headers = {} if header is None else {"Authorization": header}

    answer = await http.post("/push/pubsub", content=never_read(), headers=headers)

    assert (answer.status_code, answer.content) == (401, b"")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


async def test_token_of_an_unknown_account_is_forbidden(http, issuer):
    pusher = Pusher(http, issuer[0].mint("stranger@dev.localhost", AUDIENCE), SUBSCRIPTION)

    assert (await pusher.push("attempt.create", new_attempt())).status_code == 403


@pytest.mark.parametrize("path", ["/push/pubsub/", "/push"])
async def test_no_other_path_redirects_to_the_push_route(path, pusher):
    answer = await pusher.call("POST", path, json={})

    assert answer.status_code == 404


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_push_route_takes_posts_only(method, pusher):
    assert (await pusher.call(method, "/push/pubsub")).status_code == 405


def test_every_handler_is_named_in_the_development_subscription(services):
    allowed = services.settings.push.subscriptions[SUBSCRIPTION]

    assert set(all_handlers.build().names) <= set(allowed)
