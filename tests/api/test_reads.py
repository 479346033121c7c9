"""Reads of the control plane: filters, windows, and pages that neither lose nor repeat a row."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from app.api.paging import encode
from tests.driver import Control


def is_refusal(answer, status: int, reason: str) -> bool:
    return (answer.status_code, answer.json()["reason"]) == (status, reason)


async def pages(control: Control, path: str, size: int, **params) -> list[list[dict]]:
    """Every page of a list."""
    found, token = [], None
    while True:
        query = {"page_size": size, **params} | ({"page_token": token} if token else {})
        answer = await control.call("GET", path, params=query)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["items"])
        token = answer.json()["next_page_token"]
        if token is None:
            return found


async def ids(control: Control, **params) -> list[str]:
    answer = await control.call("GET", "/v1/attempts", params=params)
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


async def age(sql, attempt_id: str, seconds: float) -> None:
    """Make an attempt look older; by hand, for nothing in the service can."""
    async with sql.transaction():
        await sql.execute("ALTER TABLE execution_attempts DISABLE TRIGGER USER")
        await sql.execute(
            "UPDATE execution_attempts SET created_at = created_at - make_interval(secs => $2) "
            "WHERE id = $1",
            UUID(attempt_id),
            float(seconds),
        )
        await sql.execute("ALTER TABLE execution_attempts ENABLE TRIGGER USER")


# --- the list of attempts -------------------------------------------------------------------------


async def test_newest_attempt_comes_first(control):
    created = [(await control.create())["id"] for _ in range(3)]

    assert await ids(control) == created[::-1]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 500, 1_000_000])
async def test_pages_hold_every_attempt_once(size, control):
    created = [(await control.create())["id"] for _ in range(7)]

    found = await pages(control, "/v1/attempts", size)

    assert [item["id"] for page in found for item in page] == created[::-1]
    assert all(len(page) == size for page in found[:-1])


async def test_attempts_of_one_moment_are_paged_without_loss(control, sql):
    created = {(await control.create())["id"] for _ in range(6)}
    async with sql.transaction():
        await sql.execute("ALTER TABLE execution_attempts DISABLE TRIGGER USER")
        await sql.execute("UPDATE execution_attempts SET created_at = date_trunc('minute', now())")
        await sql.execute("ALTER TABLE execution_attempts ENABLE TRIGGER USER")

    found = await pages(control, "/v1/attempts", 2)

    listed = [item["id"] for page in found for item in page]
    assert len(listed) == 6
    assert set(listed) == created


async def test_attempt_that_comes_while_paging_shifts_nothing(control):
    created = [(await control.create())["id"] for _ in range(4)]
    first = (await control.call("GET", "/v1/attempts", params={"page_size": 2})).json()
    await control.create()

    params = {"page_size": 2, "page_token": first["next_page_token"]}
    second = (await control.call("GET", "/v1/attempts", params=params)).json()

    assert [item["id"] for item in first["items"] + second["items"]] == created[::-1]


async def test_page_is_never_larger_than_it_may_be_and_says_so(control):
    answer = await control.call("GET", "/v1/attempts", params={"page_size": 10_000})

    assert answer.headers["Page-Size"] == "500"


FILTERS = ["operation_id", "plan_id", "plan_node_id", "job_type", "runner_kind", "status"]


@pytest.mark.parametrize("name", [*FILTERS, "runner_instance_id"])
async def test_filter_finds_what_has_the_value_and_nothing_else(name, control, make_runner):
    wanted = await control.create(job_type="helm.install")
    await control.create()
    runner = await make_runner(runner_kind="helm", capabilities=["helm.*"]).register()
    await runner.claim()
    value = (await control.get(wanted["id"]))[name]

    assert await ids(control, **{name: value}) == [wanted["id"]]


async def test_filters_together_must_all_fit(control):
    operation = str(uuid4())
    fits = await control.create(operation_id=operation, job_type="ssh.a")
    await control.create(operation_id=operation, job_type="ssh.b")
    await control.create(job_type="ssh.a")

    found = await ids(control, operation_id=operation, job_type="ssh.a", status="queued")

    assert found == [fits["id"]]
    assert await ids(control, operation_id=operation, job_type="ssh.c") == []


async def test_without_an_operation_only_the_last_day_is_read(control, sql):
    old = await control.create()
    await age(sql, old["id"], 86_400 + 60)
    recent = await control.create()
    await age(sql, recent["id"], 86_400 - 60)

    assert await ids(control) == [recent["id"]]
    assert await ids(control, status="queued") == [recent["id"]]
    assert await ids(control, operation_id=old["operation_id"]) == [old["id"]]
    assert await ids(control, plan_id=old["plan_id"]) == [old["id"]]
    assert await ids(control, plan_node_id=old["plan_node_id"]) == [old["id"]]


async def test_window_can_be_chosen(control, sql):
    old = await control.create()
    await age(sql, old["id"], 3 * 86_400)
    await control.create()
    moment = datetime.now(UTC) - timedelta(days=3)
    before, after = moment - timedelta(hours=1), moment + timedelta(hours=1)

    assert await ids(control, created_after=before.isoformat()) != [old["id"]]
    window = {"created_after": before.isoformat(), "created_before": after.isoformat()}
    assert await ids(control, **window) == [old["id"]]
    assert await ids(control, created_before=after.isoformat()) == [old["id"]]
    naive = {name: value.removesuffix("+00:00") for name, value in window.items()}
    assert await ids(control, **naive) == [old["id"]]


@pytest.mark.parametrize(
    "other", [{"status": "running"}, {"job_type": "ssh.a"}, {"operation_id": str(uuid4())}]
)
async def test_token_of_a_list_with_other_filters_is_refused(other, control):
    for _ in range(2):
        await control.create()
    first = await control.call("GET", "/v1/attempts", params={"page_size": 1})

    answer = await control.call(
        "GET", "/v1/attempts", params={"page_token": first.json()["next_page_token"], **other}
    )

    assert is_refusal(answer, 400, "page-token-mismatch")


LISTS = ["events", "heartbeats", "logs"]


@pytest.mark.parametrize("what", LISTS)
async def test_token_of_another_attempt_is_refused(what, control, runner):
    path = await long_life(control, runner)
    first = await control.call("GET", f"{path}/{what}", params={"page_size": 1})
    other = await control.create()

    answer = await control.call(
        "GET",
        f"/v1/attempts/{other['id']}/{what}",
        params={"page_token": first.json()["next_page_token"]},
    )

    assert is_refusal(answer, 400, "page-token-mismatch")


@pytest.mark.parametrize("what", LISTS)
@pytest.mark.parametrize("token", ["x", "!!!!", "W10=", "bnVsbA==", "eyJhIjoxfQ==", "Nw==", "ä"])
async def test_garbage_for_a_token_is_refused(what, token, control):
    attempt = await control.create()

    answer = await control.call(
        "GET", f"/v1/attempts/{attempt['id']}/{what}", params={"page_token": token}
    )

    assert is_refusal(answer, 400, "page-token-invalid"), answer.text


AN_ID = "11111111-1111-1111-1111-111111111111"
PLACES = [
    [],
    [None],
    ["x"],
    ["x\x00"],
    [2**40],
    [-1],
    [2**63],
    [1.5],
    [True],
    [1, "stdout", 2**63],
    [1, "stdout", -1],
    [2**40, "stdout", 1],
    [1, "st\x00out", 1],
    [1, "stdout"],
    ["2021-01-01T00:00:00", AN_ID],
    ["0001-01-01T00:00:00+14:00", AN_ID],
    ["9999-12-31T23:59:59-14:00", AN_ID],
    ["2021-01-01T00:00:00+00:00", "x"],
    ["2021-01-01T00:00:00+00:00", 7],
    [[], []],
]


@pytest.mark.parametrize("place", PLACES, ids=str)
async def test_forged_place_is_never_a_fault_of_ours(place, control, operator):
    attempt = await control.create()
    path = f"/v1/attempts/{attempt['id']}"
    alone = {"attempt_id": UUID(attempt["id"])}
    lists = {
        f"{path}/events": alone,
        f"{path}/heartbeats": alone,
        f"{path}/logs": alone | {"stream": None},
        "/v1/attempts": dict.fromkeys(
            [*FILTERS, "runner_instance_id", "created_after", "created_before"]
        ),
    }

    lists |= {
        "/v1/runners": {"runner_kind": None, "include_offline": False},
        "/v1/concurrency-keys": {},
        "/v1/dead-letters": {"reason": None, "handler": None, "state": None},
    }

    for list_, filters in lists.items():
        answer = await operator.call("GET", list_, params={"page_token": encode(place, filters)})
        assert answer.status_code == 200 or is_refusal(answer, 400, "page-token-invalid"), (
            list_,
            answer.text,
        )


# --- what is told of one attempt ------------------------------------------------------------------


async def long_life(control: Control, runner) -> str:
    """An attempt with several of everything; returns its path."""
    await control.create()
    held = await (await runner.register()).start()
    for number in range(6):
        phase = ("executing", "completing")[number % 2]
        await held.beat(phase=phase, progress_percent=number)
        await held.log(b"%d\n" % number, 2 * number, ("stdout", "stderr")[number > 2])
        if number == 2:
            await held.log(b"\n", 0, "stderr")
            await held.log(b"1234\n", 1, "stderr")
    await held.complete()
    return f"/v1/attempts/{held.attempt_id}"


@pytest.mark.parametrize("size", [1, 2, 5, 500])
@pytest.mark.parametrize("what", LISTS)
async def test_pages_of_an_attempt_hold_everything_once_and_in_order(what, size, control, runner):
    path = await long_life(control, runner)
    [whole] = await pages(control, f"{path}/{what}", 500)

    found = await pages(control, f"{path}/{what}", size)

    assert [item for page in found for item in page] == whole
    assert len(whole) == {"events": 10, "heartbeats": 6, "logs": 8}[what]
    assert all(len(page) == size for page in found[:-1])


async def test_events_are_in_order_and_heartbeats_newest_first(control, runner):
    path = await long_life(control, runner)

    [events] = await pages(control, f"{path}/events", 500)
    [beats] = await pages(control, f"{path}/heartbeats", 500)

    assert [event["event_number"] for event in events] == list(range(1, 11))
    assert [beat["progress_percent"] for beat in beats] == [5, 4, 3, 2, 1, 0]


async def test_logs_of_one_stream(control, runner):
    path = await long_life(control, runner)

    [refs] = await pages(control, f"{path}/logs", 500, stream="stderr")

    assert {ref["stream"] for ref in refs} == {"stderr"}
    assert [ref["stream_offset"] for ref in refs] == [0, 1, 6, 8, 10]


@pytest.mark.parametrize("what", ["", "/events", "/leases", "/heartbeats", "/logs", "/logs/stdout"])
async def test_unknown_attempt_is_not_found(what, control):
    answer = await control.call("GET", f"/v1/attempts/{uuid4()}{what}")

    assert is_refusal(answer, 404, "attempt-not-found")


async def test_waiting_for_the_end_ends_with_it(control, runner):
    attempt = await control.create()
    held = await (await runner.register()).start()
    waiting = asyncio.create_task(
        control.call("GET", f"/v1/attempts/{attempt['id']}", params={"wait_seconds": 20})
    )
    await asyncio.sleep(0)

    await held.complete()

    assert (await waiting).json()["status"] == "succeeded"


async def test_waiting_for_the_end_ends_at_its_time(control):
    attempt = await control.create()

    answer = await control.call(
        "GET", f"/v1/attempts/{attempt['id']}", params={"wait_seconds": 0.05}
    )

    assert answer.json()["status"] == "queued"


async def test_answers_are_never_cached(control):
    attempt = await control.create()

    for path in ("/v1/attempts", f"/v1/attempts/{attempt['id']}"):
        assert (await control.call("GET", path)).headers["Cache-Control"] == "no-store"
