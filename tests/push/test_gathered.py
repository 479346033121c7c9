"""Pushes that come together share a transaction, and none pays for another."""

import asyncio
from uuid import uuid4

import pytest

from app.api import histories
from app.domain.envelope import Envelope
from app.domain.errors import AlreadyStarted, OutcomeUnknown, StateChanged
from app.embedded.environment import ACCOUNTS, AUDIENCE, SUBSCRIPTION
from app.handlers.registry import Registry
from app.store import gathering
from tests.driver import Control, Held, RunnerClient, new_attempt
from tests.gathered import together
from tests.push.conftest import envelope
from tests.push.service import Add, registry_of_tests

REFUSED, LATER, BROKEN, SPOILT = -1, -2, -3, -4
"""Numbers that are refused for good, refused for now, raise, and that the server refuses."""


class Desk:
    """A handler of many messages whose batches a test can hold up and see."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.registry: Registry = registry_of_tests()
        self.registry.set_handler("desk.note", Add)(self._note)

    async def _note(self, contexts, commands):
        numbers = [command.number for command in commands]
        self.batches.append(numbers)
        await self.open.wait()
        if BROKEN in numbers:
            raise RuntimeError("as asked")
        good = [number for number in numbers if number not in {REFUSED, LATER}]
        await contexts[0].transaction.execute(
            "INSERT INTO ledger SELECT n, 'none' FROM unnest($1::bigint[]) n", good
        )
        if SPOILT in numbers:
            await contexts[0].transaction.execute("SELECT 1 / 0")
        errors = {REFUSED: AlreadyStarted, LATER: StateChanged}
        return [errors[number]() if number in errors else None for number in numbers]

    async def until_batches(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.batches) < count:
                await asyncio.sleep(0.001)


class Instance:
    """The service with that handler."""

    def __init__(self, http, pusher, desk) -> None:
        self.http, self.pusher, self.desk = http, pusher, desk
        self.services = http._transport.app.state.services
        self.dispatcher = http._transport.app.state.dispatcher

    def push(self, *numbers: int, **more) -> list[asyncio.Task]:
        return [
            asyncio.create_task(self.pusher.push("desk.note", {"number": number}, **more))
            for number in numbers
        ]

    @property
    def waiting(self) -> int:
        return len(self.dispatcher._carrier._together["desk.note"]._waiting)

    async def until_waiting(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.waiting < count:
                await asyncio.sleep(0.001)

    async def push_together(self, *numbers: int) -> list[int]:
        """Push these while as many batches are under way as may be; the statuses."""
        self.desk.open.clear()
        before = len(self.desk.batches)
        first = []
        for count in range(gathering.PARALLEL):
            first += self.push(1000 + before + count)
            await self.desk.until_batches(before + count + 1)
        tasks = self.push(*numbers)
        await self.until_waiting(len(numbers))
        self.desk.open.set()
        await asyncio.gather(*first)
        del self.desk.batches[: before + gathering.PARALLEL]
        return [answer.status_code for answer in await asyncio.gather(*tasks)]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def instance(open_instance, pusher_to, desk):
    async def make(**more) -> Instance:
        names = {"PUSH__SUBSCRIPTIONS": {SUBSCRIPTION: desk.registry.names}}
        http = await open_instance(desk.registry, **{**names, **more})
        return Instance(http, pusher_to(http), desk)

    return make


@pytest.fixture
def transactions(parts, monkeypatch):
    """The transactions that the service began, each as the names of its statements."""
    begun: list[list[str]] = []
    once = parts.database._once

    async def counted(command, begin):
        names: list[str] = []
        begun.append(names)

        async def logged(conn):
            with conn.query_logger(lambda record: names.append(record.query.split()[1])):
                return await command(conn)

        return await once(logged, begin)

    monkeypatch.setattr(parts.database, "_once", counted)
    return begun


async def rows(sql, table: str) -> int:
    return await sql.fetchval(f"SELECT count(*) FROM {table}")


# --- what a push costs ----------------------------------------------------------------------------


async def test_lone_push_goes_at_once_in_one_transaction(instance, transactions, ledger):
    one = await instance()

    statuses = [(await task).status_code for task in one.push(7)]

    assert statuses == [204]
    assert await ledger() == [7]
    assert [names[:2] for names in transactions if "messages.mark_working" not in names] == [
        ["messages.enter", "messages.mark_processed_once"]
    ]
    assert one.desk.batches == [[7]]


async def test_pushes_that_come_together_share_one_transaction(instance, transactions, ledger, sql):
    one = await instance()
    await one.push_together()
    transactions.clear()

    assert await one.push_together(*range(50)) == [204] * 50

    assert [len(batch) for batch in one.desk.batches] == [50]
    assert len(transactions) == gathering.PARALLEL + 1
    assert [number for number in await ledger() if number < 50] == list(range(50))
    assert await rows(sql, "processed_messages") == 50 + 2 * gathering.PARALLEL


async def test_set_of_pushes_is_bounded(instance):
    one = await instance(PUSH__MAX_IN_FLIGHT=200)

    assert set(await one.push_together(*range(90))) == {204}

    assert max(map(len, one.desk.batches)) == gathering.MOST
    assert sorted(n for batch in one.desk.batches for n in batch) == list(range(90))


async def test_push_with_a_key_of_its_own_costs_its_command_alone_while_nothing_is_noted(
    instance, transactions, sql
):
    one = await instance()
    await one.pusher.push("attempt.create", new_attempt())
    transactions.clear()

    answer = await one.pusher.push("attempt.create", new_attempt())

    assert answer.status_code == 204
    assert [names[0] for names in transactions] == ["attempts.create"]


async def test_what_is_noted_is_looked_up_again_as_soon_as_anything_failed_here(
    instance, transactions, sql
):
    one = await instance()
    await one.pusher.push("attempt.create", new_attempt())
    identifier = str(uuid4())
    cancel = {"attempt_id": identifier}
    failed = await one.pusher.push("attempt.cancel", cancel, id=identifier)
    transactions.clear()

    again = await one.pusher.push("attempt.cancel", cancel, id=identifier)

    assert (failed.status_code, again.status_code) == (503, 503)
    assert transactions[0] == ["messages.find_histories"]
    assert await sql.fetchval("SELECT failures FROM message_failures") == 2


async def test_nothing_is_taken_for_quiet_longer_than_a_mark_takes_to_count():
    assert histories.QUIET_SECONDS < 5


KINDS = [
    *("attempt.create", "lease.heartbeat", "lease.complete"),
    *("runner.report_status", "log.append"),
]


@pytest.mark.parametrize("kind", KINDS)
async def test_pushes_and_requests_of_one_kind_share_their_batches(kind, instance, issuer):
    one = await instance()
    mint = issuer[0].mint
    control = Control(one.http, mint(ACCOUNTS["control-plane"], AUDIENCE))
    held = []
    for _ in range(4):
        runner = RunnerClient(one.http, mint(ACCOUNTS["runner"], AUDIENCE))
        await runner.register()
        await control.create()
        held.append(await runner.start())
    data, ask = {
        "attempt.create": (lambda _: new_attempt(), lambda _: control.try_create()),
        "lease.heartbeat": (
            lambda h: {**proof(h), "session_id": h.runner.session_id, "sequence": 5},
            lambda h: h.beat(sequence=5),
        ),
        "lease.complete": (
            lambda h: {**proof(h), "outcome": "succeeded"},
            lambda h: h.complete(),
        ),
        "runner.report_status": (
            lambda h: {"runner_id": h.runner.id, **report(h.runner)},
            lambda h: h.runner.call(
                "PUT", f"/v1/runners/{h.runner.id}/status", json=report(h.runner)
            ),
        ),
        "log.append": (
            lambda h: {**proof(h), "stream": "stdout", "offset": 0, "data_base64": "YQo="},
            lambda h: h.log(b"a\n", 0),
        ),
    }[kind]
    name = {"runner.report_status": "report"}.get(kind, kind.split(".")[1])

    answers, sizes = await together(
        getattr(one.services.gathered, name),
        [
            *(one.pusher.push(kind, data(each)) for each in held[:2]),
            *(ask(each) for each in held[2:]),
        ],
    )

    assert {answer.status_code for answer in answers} <= {200, 201, 204}
    assert sizes == [4]
    dead = await one.services.database.run(
        lambda conn: conn.fetchval("SELECT count(*) FROM dead_letters")
    )
    assert dead == 0


def proof(held: Held) -> dict:
    return {"lease_id": held.id, "lease_token": held.token}


def report(runner: RunnerClient) -> dict:
    return {
        "session_id": runner.session_id,
        "sequence": 3,
        "status": "ready",
        "capacity_total": 2,
    }


# --- none pays for another ------------------------------------------------------------------------


async def test_refused_push_leaves_its_letter_and_no_note_and_the_others_their_effects(
    instance, transactions, ledger, sql
):
    one = await instance()

    statuses = await one.push_together(1, REFUSED, 2)

    assert statuses == [204, 204, 204]
    assert one.desk.batches == [[1, REFUSED, 2]]
    assert [number for number in await ledger() if number < 1000] == [1, 2]
    assert await rows(sql, "dead_letters") == 1
    assert await rows(sql, "processed_messages") == 2 + gathering.PARALLEL
    assert sum("dead_letters.record" in names for names in transactions) == 1
    assert len(transactions) == gathering.PARALLEL + 1


async def test_refused_push_is_left_to_its_subscription_where_that_has_a_place_for_it(
    instance, sql
):
    one = await instance(PUSH__POISON="nack")

    statuses = await one.push_together(1, REFUSED)

    assert statuses == [204, 409]
    assert await rows(sql, "dead_letters") == 0


async def test_push_that_may_succeed_later_is_counted_alone(instance, ledger, sql):
    one = await instance()

    statuses = await one.push_together(1, LATER, 2)

    assert statuses == [204, 503, 204]
    assert [number for number in await ledger() if number < 1000] == [1, 2]
    assert await sql.fetchval("SELECT failures FROM message_failures") == 1
    assert await rows(sql, "processed_messages") == 2 + gathering.PARALLEL


@pytest.mark.parametrize("bad", [BROKEN, SPOILT])
async def test_push_that_breaks_its_batch_fails_alone(bad, instance, ledger, sql):
    one = await instance()

    statuses = await one.push_together(*range(7), bad, *range(8, 12))

    assert statuses == [*[204] * 7, 503, *[204] * 4]
    assert [n for n in await ledger() if n < 1000] == [*range(7), *range(8, 12)]
    assert await sql.fetch("SELECT failures, handler FROM message_failures") == [(1, "desk.note")]


async def test_messages_that_failed_before_go_alone_and_their_failures_are_forgotten(
    instance, ledger, sql
):
    one = await instance()
    noted = [envelope("desk.note", {"number": number}) for number in range(5)]
    for message in noted:
        await sql.execute(
            "INSERT INTO message_failures (message_digest, handler, failures) VALUES ($1, '', 1)",
            _digest_of(message, one.services.keys),
        )
    one.desk.open.clear()
    first = one.push(1000, 1001)
    await one.desk.until_batches(gathering.PARALLEL)
    tasks = [asyncio.create_task(one.pusher.push_envelope(message)) for message in noted]
    tasks += one.push(6)
    await one.until_waiting(6)
    one.desk.open.set()
    answers = await asyncio.gather(*tasks, *first)

    assert {answer.status_code for answer in answers} == {204}
    assert sorted(one.desk.batches[gathering.PARALLEL :]) == [[0], [1], [2], [3], [4], [6]]
    assert await rows(sql, "message_failures") == 0
    assert await ledger() == [0, 1, 2, 3, 4, 6, 1000, 1001]


async def test_large_messages_hold_up_no_set(instance, ledger):
    one = await instance()
    note = "x" * 1_100_000
    one.desk.open.clear()
    first = one.push(1000, 1001)
    await one.desk.until_batches(gathering.PARALLEL)
    large = [
        asyncio.create_task(one.pusher.push("desk.note", {"number": number, "note": note}))
        for number in range(3)
    ]
    await one.desk.until_batches(gathering.PARALLEL + 3)
    one.desk.open.set()
    answers = await asyncio.gather(*first, *large)

    assert {answer.status_code for answer in answers} == {204}
    assert sorted(one.desk.batches) == [[0], [1], [2], [1000], [1001]]
    assert await ledger() == [0, 1, 2, 1000, 1001]


def _digest_of(content, keys) -> str:
    return Envelope(1, content["to"], content["id"], content["data"]).digests(keys)[0]


async def test_message_that_another_is_at_work_on_comes_back_and_its_neighbours_are_done(
    instance, ledger, sql, desk
):
    one = await instance()
    held = envelope("desk.note", {"number": 5})
    lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
    async with sql.transaction():
        await sql.execute(lock, _digest_of(held, one.services.keys))

        desk.open.clear()
        first = one.push(1000, 1001)
        await desk.until_batches(2)
        tasks = [asyncio.create_task(one.pusher.push_envelope(held)), *one.push(6)]
        await one.until_waiting(2)
        desk.open.set()
        answers = await asyncio.gather(*tasks, *first)

    again = await one.pusher.push_envelope(held)
    assert [answer.status_code for answer in answers] == [503, 204, 204, 204]
    assert again.status_code == 204
    assert await ledger() == [5, 6, 1000, 1001]


async def test_same_message_ten_times_at_once_has_one_effect(instance, ledger):
    one = await instance()
    identifier = str(uuid4())

    answers = await asyncio.gather(*one.push(*[7] * 10, id=identifier))

    assert {answer.status_code for answer in answers} <= {204, 503}
    assert await ledger() == [7]


async def test_pushes_that_took_too_long_together_are_nobodys_fault_and_go_alone_next_time(
    instance, ledger, sql
):
    one = await instance(PUSH__HANDLER_TIMEOUT_SECONDS=0.4)
    one.desk.open.clear()
    messages = [envelope("desk.note", {"number": number}) for number in range(6)]

    slow = await asyncio.gather(*(one.pusher.push_envelope(each) for each in messages))
    counted = await rows(sql, "message_failures")
    await one.services.gathered.drain()
    one.desk.open.set()
    one.desk.batches.clear()
    again = await asyncio.gather(*(one.pusher.push_envelope(each) for each in messages))

    assert [answer.status_code for answer in slow] == [503] * 6
    assert counted == 0
    assert [answer.status_code for answer in again] == [204] * 6
    assert sorted(one.desk.batches) == [[number] for number in range(6)]
    assert await ledger() == list(range(6))


async def test_sender_that_hangs_up_hurts_no_neighbour(instance, ledger):
    one = await instance()
    one.desk.open.clear()
    first = one.push(1000, 1001)
    await one.desk.until_batches(2)
    waiting = one.push(1, 2, 3)
    await one.until_waiting(3)
    waiting[1].cancel()
    await asyncio.sleep(0)
    one.desk.open.set()
    answers = await asyncio.gather(*first, waiting[0], waiting[2])

    assert {answer.status_code for answer in answers} == {204}
    assert {1, 3} <= set(await ledger())


async def test_full_queue_sends_pushes_back_uncounted(instance, ledger, sql, monkeypatch):
    one = await instance()
    monkeypatch.setattr(gathering, "ROOM", 2)

    one.desk.open.clear()
    first = one.push(1000, 1001)
    await one.desk.until_batches(2)
    waiting = one.push(1, 2)
    await one.until_waiting(2)
    [refused] = await asyncio.gather(*one.push(3))
    one.desk.open.set()
    answers = await asyncio.gather(*first, *waiting)

    assert refused.status_code == 503
    assert {answer.status_code for answer in answers} == {204}
    assert await rows(sql, "message_failures") == 0


async def test_unknown_outcome_is_503_for_all_of_a_set_and_none_is_run_again(
    instance, ledger, sql, monkeypatch
):
    one = await instance()
    database = one.services.database
    commit = database._commit

    async def commit_and_forget(connection) -> None:
        await commit(connection)
        raise OutcomeUnknown

    messages = [envelope("desk.note", {"number": number}) for number in range(5)]
    one.desk.open.clear()
    first = one.push(1000, 1001)
    await one.desk.until_batches(2)
    tasks = [asyncio.create_task(one.pusher.push_envelope(each)) for each in messages]
    await one.until_waiting(5)
    monkeypatch.setattr(database, "_commit", commit_and_forget)
    one.desk.open.set()
    answers = await asyncio.gather(*tasks)
    await asyncio.gather(*first)
    monkeypatch.undo()
    again = [await one.pusher.push_envelope(each) for each in messages]

    assert {answer.status_code for answer in answers} == {503}
    assert one.desk.batches[2:] == [[0, 1, 2, 3, 4]]
    assert {answer.status_code for answer in again} == {204}
    assert [number for number in await ledger() if number < 1000] == [0, 1, 2, 3, 4]
    assert await rows(sql, "message_failures") == 0


async def test_drain_waits_for_pushes_that_are_under_way(instance, ledger):
    one = await instance()
    one.desk.open.clear()
    tasks = one.push(1, 2)
    await one.desk.until_batches(2)
    draining = asyncio.create_task(one.services.gathered.drain())
    await asyncio.sleep(0.01)
    is_waiting = not draining.done()
    one.desk.open.set()
    await draining

    assert is_waiting
    assert await ledger() == [1, 2]
    await asyncio.gather(*tasks)


async def test_poison_that_comes_together_is_buried_together(instance, transactions, sql):
    one = await instance()

    answers = await asyncio.gather(*(one.pusher.push_bytes(b" " * n + b"[]") for n in range(40)))

    assert {answer.status_code for answer in answers} == {204}
    assert await rows(sql, "dead_letters") == 40
    assert len(transactions) < 20
