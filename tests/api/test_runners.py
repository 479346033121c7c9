"""Runners: their sessions, what they report, and which work they are given."""

import asyncio
from uuid import uuid4

import pytest

from app.domain.lifecycle import LeaseStatus
from tests.api.conftest import end_lease
from tests.driver import Held, RunnerClient

SECRETS = {
    "k1": "the first secret of the tests, long enough",
    "k2": "the second secret of the tests, long enough",
}


def is_refusal(answer, status: int, reason: str) -> bool:
    return (answer.status_code, answer.json()["reason"]) == (status, reason)


def next_session(runner: RunnerClient) -> RunnerClient:
    """Another process under the same runner id."""
    token = runner.headers["Authorization"].removeprefix("Bearer ")
    return RunnerClient(runner.http, token, id=runner.id, **runner.profile)


# --- sessions -------------------------------------------------------------------------------------


async def test_registered_runner_is_answered_whole(runner):
    runner.profile |= {"zone": "eu", "labels": {"network": "private"}}

    answer = await runner.try_register(capacity_total=3)

    body = answer.json()
    shown = body.pop("runner")
    assert body == {
        "session_began": True,
        "lease_seconds": 30.0,
        "heartbeat_every_seconds": 10.0,
        "claim_grace_seconds": 15.0,
    }
    assert shown.pop("registered_at") <= shown.pop("last_seen_at")
    assert shown == {
        "id": runner.id,
        "runner_kind": "ssh",
        "version": "1.0.0",
        "capabilities": ["ssh.command.run"],
        "zone": "eu",
        "labels": {"network": "private"},
        "session_id": runner.session_id,
        "status": "ready",
        "capacity_total": 3,
        "capacity_used": 0,
        "last_error": None,
    }


async def test_same_session_again_changes_nothing(runner, control):
    await control.create()
    held = await (await runner.register()).start()

    again = await runner.try_register()

    assert again.json()["session_began"] is False
    assert (await held.beat()).status_code == 200


async def test_order_of_capabilities_is_no_change_of_profile(runner):
    await runner.register(capabilities=["ssh.a", "ssh.b"])

    assert (await runner.try_register(capabilities=["ssh.b", "ssh.a"])).status_code == 200


@pytest.mark.parametrize(
    "change",
    [
        {"runner_kind": "helm", "capabilities": ["helm.install"]},
        {"capabilities": ["ssh.command.run", "ssh.command.check"]},
        {"capabilities": ["ssh.command.check"]},
        {"zone": "eu"},
        {"labels": {"network": "private"}},
        {"version": "1.0.1"},
    ],
    ids=str,
)
async def test_session_with_another_profile_is_refused(change, runner):
    before = (await runner.try_register()).json()["runner"]

    refused = await runner.try_register(**change)

    after = (await runner.try_register()).json()["runner"]
    assert is_refusal(refused, 409, "session-reused")
    assert before | {"last_seen_at": ""} == after | {"last_seen_at": ""}


async def test_new_session_takes_over_and_ends_the_leases_of_the_one_before(
    runner, control, make_runner
):
    await control.create(job_type="ssh.command.run")
    await control.create(job_type="ssh.command.run")
    await runner.register(capacity_total=2)
    started, claimed = await runner.claim_all(max_leases=2)
    await started.start()

    newer = await next_session(runner).register()

    assert is_refusal(await started.beat(), 409, "session-replaced")
    assert is_refusal(await claimed.start(), 409, "session-replaced")
    assert await control.status(started.attempt_id) == "lost"
    assert await control.status(claimed.attempt_id) == "leased"
    assert (await control.event_types(started.attempt_id))[-2:] == ["lease_revoked", "lost"]
    assert (await control.event_types(claimed.attempt_id))[-1] == "lease_revoked"
    again = await (await make_runner().register()).claim()
    assert again.attempt_id == claimed.attempt_id
    assert again.continuation is True
    assert (await newer.try_register()).json()["session_began"] is False


async def test_replaced_session_never_comes_back(runner):
    await runner.register()
    newer = await next_session(runner).register()

    answers = [await runner.try_register(), await runner.try_claim()]

    assert all(is_refusal(answer, 409, "session-replaced") for answer in answers)
    assert all(answer.json()["action"] == "stop" for answer in answers)
    assert (await newer.try_claim()).status_code == 200


async def test_runner_id_that_changes_hands_too_often_is_contested(runner, sql):
    answers = [await next_session(runner).try_register() for _ in range(4)]
    refused = await next_session(runner).try_register()
    current = await sql.fetchval("SELECT session_id FROM runner_instances")
    contested_at = await sql.fetchval("SELECT contested_at FROM runner_instances")
    await sql.execute("UPDATE runner_sessions SET began_at = now() - interval '61 s'")
    later = await next_session(runner).try_register()

    assert [answer.status_code for answer in answers] == [200] * 4
    assert is_refusal(refused, 409, "runner-id-contested")
    assert str(current) == answers[-1].json()["runner"]["session_id"]
    assert contested_at is not None
    assert later.status_code == 200


async def test_first_registrations_at_once_leave_one_session(runner, sql):
    sessions = [next_session(runner) for _ in range(3)]

    answers = await asyncio.gather(
        *(session.try_register() for session in sessions for _ in range(3))
    )

    assert {answer.status_code for answer in answers} <= {200, 409}
    current = str(await sql.fetchval("SELECT session_id FROM runner_instances"))
    [last] = [session for session in sessions if session.session_id == current]
    assert (await last.try_claim()).status_code == 200
    assert await sql.fetchval("SELECT count(*) FROM runner_sessions WHERE replaced_at IS NULL") == 1


# --- reports --------------------------------------------------------------------------------------


async def report(runner: RunnerClient, sequence: int, **fields):
    body = {
        "session_id": runner.session_id,
        "sequence": sequence,
        "status": "ready",
        "capacity_total": 1,
        **fields,
    }
    return await runner.call("PUT", f"/v1/runners/{runner.id}/status", json=body)


async def test_report_is_shown_and_an_older_one_changes_nothing(runner):
    await runner.register()

    await report(runner, 5, status="busy", capacity_total=4, last_error="disk full")
    shown = (await report(runner, 5, status="ready", capacity_total=9)).json()
    older = (await report(runner, 4, status="ready", capacity_total=9)).json()

    for answer in (shown, older):
        assert (answer["status"], answer["capacity_total"]) == ("busy", 4)
        assert answer["last_error"] == "disk full"


@pytest.mark.parametrize("status", ["ready", "busy", "draining", "unhealthy", "offline"])
async def test_reported_status_is_the_shown_one(status, runner):
    await runner.register()

    assert (await report(runner, 1, status=status)).json()["status"] == status


@pytest.mark.parametrize(
    ("status", "gets_work"),
    [
        ("ready", True),
        ("busy", True),
        ("draining", False),
        ("unhealthy", False),
        ("offline", False),
    ],
)
async def test_runner_that_wants_no_work_is_given_none(status, gets_work, runner, control):
    await control.create()
    await runner.register()
    await report(runner, 1, status=status)

    assert bool(await runner.claim_all()) is gets_work


async def test_runner_without_room_is_shown_as_busy(runner, control):
    await control.create()
    await (await runner.register()).claim()

    shown = (await runner.try_register()).json()["runner"]
    assert (shown["status"], shown["capacity_used"]) == ("busy", 1)


@pytest.mark.parametrize(("seconds", "status"), [(89, "ready"), (91, "offline")])
async def test_silent_runner_is_shown_as_offline(seconds, status, runner, control, sql):
    await runner.register()
    await sql.execute(
        "UPDATE runner_instances SET last_seen_at = now() - make_interval(secs => $1)", seconds
    )

    answer = await control.call("GET", f"/v1/runners/{runner.id}")

    assert answer.json()["runner"]["status"] == status


async def test_new_session_starts_with_a_clean_report(runner):
    await runner.register()
    await report(runner, 7, status="unhealthy", last_error="disk full")

    shown = (await next_session(runner).try_register()).json()["runner"]

    assert (shown["status"], shown["last_error"]) == ("ready", None)


async def test_report_of_an_unknown_runner_or_session_is_refused(runner, make_runner):
    await runner.register()
    stranger = next_session(runner)

    assert is_refusal(await report(make_runner(), 1), 404, "runner-not-found")
    assert is_refusal(await report(stranger, 1), 409, "session-unknown")


# --- who is given what ----------------------------------------------------------------------------


async def test_unregistered_runner_and_unknown_session_claim_nothing(runner):
    unregistered = await runner.try_claim()
    await runner.register()
    unknown = await next_session(runner).try_claim()

    assert is_refusal(unregistered, 404, "runner-not-found")
    assert is_refusal(unknown, 409, "session-unknown")


async def test_claim_gives_lease_token_and_attempt(runner, control):
    attempt = await control.create()
    await runner.register()

    answer = await runner.try_claim()

    [claimed] = answer.json()["leases"]
    assert claimed["continuation"] is False
    assert claimed["lease_token"].startswith("lt_")
    assert claimed["lease"]["lease_number"] == 1
    assert claimed["lease"]["status"] == "active"
    assert claimed["lease"]["runner_instance_id"] == runner.id
    assert claimed["lease"]["created_at"] == claimed["attempt"]["leased_at"]
    assert claimed["attempt"] == await control.get(attempt["id"])
    assert [await control.list_of(attempt["id"], "leases")] == [[claimed["lease"]]]


async def test_token_is_nowhere_in_the_database(runner, control, sql):
    await control.create()
    held = await (await runner.register()).start()
    await held.beat(phase="executing")
    await held.log(b"x", 0)

    for table in ("runner_leases", "attempt_events", "execution_attempts", "attempt_heartbeats"):
        rows = await sql.fetch(f"SELECT t::text FROM {table} t")
        assert rows
        assert not any(held.token in row["t"] for row in rows)


async def test_nothing_to_claim_is_an_empty_list(runner):
    await runner.register()

    answer = await runner.try_claim(max_leases=5)

    assert (answer.status_code, answer.json()["leases"]) == (200, [])


async def test_small_priority_goes_first_then_the_older_attempt(runner, control):
    created = [await control.create(priority=priority) for priority in (5, 0, 5, 100, 1)]
    await runner.register(capacity_total=5)

    order = [held.attempt_id for held in await runner.claim_all(max_leases=5)]

    assert order == [created[number]["id"] for number in (1, 4, 0, 2, 3)]


async def test_priority_counts_over_all_placements_of_a_runner(control, make_runner):
    runner = make_runner(capabilities=["ssh.*"], zone="eu", labels={"a": "1"})
    await runner.register(capacity_total=4)
    created = [
        await control.create(priority=9, job_type="ssh.a"),
        await control.create(priority=8, job_type="ssh.b", placement={"zone": "eu"}),
        await control.create(priority=7, job_type="ssh.a", placement={"labels": {"a": "1"}}),
    ]

    order = [held.attempt_id for held in await runner.claim_all(max_leases=2)]

    assert order == [created[2]["id"], created[1]["id"]]


@pytest.mark.parametrize(("wanted", "capacity", "given"), [(1, 5, 1), (3, 5, 3), (9, 5, 5)])
async def test_claim_gives_no_more_than_was_asked_for_and_there_is_room_for(
    wanted, capacity, given, runner, control
):
    for _ in range(7):
        await control.create()
    await runner.register(capacity_total=capacity)

    assert len(await runner.claim_all(max_leases=wanted)) == given


async def test_room_is_free_again_when_a_lease_has_ended(runner, control):
    for _ in range(3):
        await control.create()
    await runner.register(capacity_total=2)
    first, _ = await runner.claim_all(max_leases=9)

    full = await runner.claim_all(max_leases=9)
    await first.complete()
    after = await runner.claim_all(max_leases=9)

    assert (len(full), len(after)) == (0, 1)


async def test_claims_at_once_never_exceed_the_capacity(runner, control):
    for _ in range(12):
        await control.create()
    await runner.register(capacity_total=5)

    claimed = await asyncio.gather(*(runner.claim_all(max_leases=3) for _ in range(8)))

    leases = [held.id for some in claimed for held in some]
    assert len(leases) == len(set(leases)) == 5


MATCHES = [
    (["ssh.command.run"], "ssh.command.run", True),
    (["ssh.command.run"], "ssh.command.runner", False),
    (["ssh.command.run"], "ssh.command", False),
    (["ssh.command"], "ssh.command.run", False),
    (["ssh.*"], "ssh.command.run", True),
    (["ssh.*"], "ssh.x", True),
    (["ssh.command.*"], "ssh.command.run", True),
    (["ssh.command.*"], "ssh.command", False),
    (["ssh.command.*"], "ssh.commands.run", False),
    (["ssh.a", "ssh.b.*"], "ssh.b.c", True),
]


@pytest.mark.parametrize(("capabilities", "job_type", "fits"), MATCHES)
async def test_capability_names_a_job_type_exactly_or_by_prefix(
    capabilities, job_type, fits, control, make_runner
):
    await control.create(job_type=job_type)
    runner = await make_runner(capabilities=capabilities).register()

    assert bool(await runner.claim_all()) is fits


async def test_kind_must_fit(control, make_runner):
    await control.create(job_type="helm.install")
    await make_runner(capabilities=["ssh.*"]).register()
    helm = await make_runner(runner_kind="helm", capabilities=["helm.*"]).register()

    assert len(await helm.claim_all()) == 1


PLACEMENTS = [
    ({}, {}, True),
    ({}, {"zone": "eu"}, False),
    ({"zone": "us"}, {"zone": "eu"}, False),
    ({"zone": "eu"}, {"zone": "eu"}, True),
    ({"zone": "eu"}, {}, True),
    ({"zone": "eu", "labels": {"a": "1", "b": "2"}}, {"zone": "eu", "labels": {"a": "1"}}, True),
    ({"labels": {"a": "1"}}, {"labels": {"a": "2"}}, False),
    ({"labels": {"a": "1"}}, {"labels": {"a": "1", "b": "2"}}, False),
    ({"labels": {"b": "1"}}, {"labels": {"a": "1"}}, False),
    ({"zone": "us", "labels": {"a": "1"}}, {"zone": "eu", "labels": {"a": "1"}}, False),
]


@pytest.mark.parametrize(("profile", "placement", "fits"), PLACEMENTS)
async def test_runner_must_have_zone_and_labels_that_are_asked_for(
    profile, placement, fits, control, make_runner
):
    await control.create(placement=placement)
    runner = await make_runner(**profile).register()

    assert bool(await runner.claim_all()) is fits


async def test_work_of_a_placement_that_did_not_exist_before_is_found(runner, control):
    await runner.register(capabilities=["ssh.*"], capacity_total=9)

    for number in range(3):
        await control.create(job_type=f"ssh.new_{number}")
        assert len(await runner.claim_all()) == 1


async def test_claim_waits_for_work(runner, control):
    await runner.register()
    waiting = asyncio.create_task(runner.claim_all(wait_seconds=20))

    attempt = await control.create()

    assert [held.attempt_id for held in await waiting] == [attempt["id"]]


async def test_waiting_ends_empty_at_its_time(runner):
    await runner.register()

    assert await runner.claim_all(wait_seconds=0.05) == []


# --- a repeated claim -----------------------------------------------------------------------------


async def test_repeated_claim_gives_the_same_leases_and_tokens(runner, control):
    for _ in range(3):
        await control.create()
    await runner.register(capacity_total=3)
    request = {"request_id": str(uuid4()), "max_leases": 2}

    first = await runner.try_claim(**request)
    again = [await runner.try_claim(**request) for _ in range(2)]

    assert len(first.json()["leases"]) == 2
    assert all(answer.json() == first.json() for answer in again)


async def test_repeated_claim_is_known_on_every_instance(runner, control, open_instance):
    await control.create()
    await runner.register()
    request = {"request_id": str(uuid4())}
    first = await runner.try_claim(**request)

    runner.http = await open_instance()

    assert (await runner.try_claim(**request)).json() == first.json()


async def test_one_claim_sent_to_two_instances_at_once_gives_the_same_leases(
    runner, control, open_instance
):
    for _ in range(20):
        await control.create()
    await runner.register(capacity_total=20)
    other = next_session(runner)
    other.session_id, other.http = runner.session_id, await open_instance()

    for _ in range(5):
        request = {"request_id": str(uuid4()), "max_leases": 2}
        answers = await asyncio.gather(
            *(one.try_claim(**request) for one in (runner, other) for _ in range(3))
        )

        given = {
            tuple((lease["lease"]["id"], lease["lease_token"]) for lease in answer.json()["leases"])
            for answer in answers
        }
        assert len(given) == 1
        assert len(given.pop()) == 2


async def test_empty_answer_is_not_remembered(runner, control):
    await runner.register()
    request = {"request_id": str(uuid4())}

    empty = await runner.claim_all(**request)
    await control.create()

    assert (len(empty), len(await runner.claim_all(**request))) == (0, 1)


async def test_used_request_never_claims_anew_and_shows_how_its_leases_ended(runner, control):
    for _ in range(3):
        await control.create()
    await runner.register(capacity_total=3)
    request = {"request_id": str(uuid4()), "max_leases": 2}
    ended, live = await runner.claim_all(**request)
    await ended.complete()

    again = (await runner.try_claim(**request)).json()["leases"]

    shown = {lease["lease"]["id"]: lease for lease in again}
    assert set(shown) == {ended.id, live.id}
    assert shown[ended.id]["lease_token"] is None
    assert shown[ended.id]["lease"]["status"] == "released"
    assert shown[ended.id]["attempt"]["status"] == "succeeded"
    assert shown[live.id]["lease_token"] == live.token


async def test_replayed_lease_is_shown_as_it_was_although_another_runner_went_on(
    runner, control, make_runner, sql
):
    await control.create()
    await runner.register()
    request = {"request_id": str(uuid4())}
    held = await runner.claim(**request)
    await held.post("release")
    await sql.execute("UPDATE execution_attempts SET backoff_until = NULL")
    other = await (await make_runner().register()).claim()
    assert other.attempt_id == held.attempt_id

    [again] = (await runner.try_claim(**request)).json()["leases"]

    [first, _] = await control.list_of(held.attempt_id, "leases")
    assert again["lease"] == first
    assert again["lease"]["runner_instance_id"] == runner.id
    assert again["attempt"]["runner_instance_id"] == other.runner.id


async def test_tokens_stay_the_same_when_the_server_key_is_changed(runner, control, open_instance):
    runner.http = await open_instance(KEYS__CURRENT="k1", KEYS__SECRETS=SECRETS)
    await control.create()
    await runner.register()
    request = {"request_id": str(uuid4())}
    held = await runner.claim(**request)

    runner.http = await open_instance(KEYS__CURRENT="k2", KEYS__SECRETS=SECRETS)
    again = await runner.claim(**request)

    assert again.token == held.token
    assert (await again.start()).status_code == 200


async def test_repeat_whose_token_key_is_gone_gives_the_leases_back(runner, control, open_instance):
    runner.http = await open_instance(KEYS__CURRENT="k1", KEYS__SECRETS=SECRETS)
    attempt = await control.create()
    await runner.register()
    request = {"request_id": str(uuid4())}
    await runner.claim(**request)

    runner.http = await open_instance(KEYS__CURRENT="k2", KEYS__SECRETS={"k2": SECRETS["k2"]})
    refused = await runner.try_claim(**request)
    anew = await runner.claim_all()

    assert is_refusal(refused, 409, "token-key-retired")
    assert [held.attempt_id for held in anew] == [attempt["id"]]


async def test_request_of_another_session_is_no_repeat(runner, control):
    await control.create()
    await runner.register()
    request = {"request_id": str(uuid4())}
    held = await runner.claim(**request)
    newer = await next_session(runner).register()

    again = await newer.claim_all(**request)

    assert held.id not in [one.id for one in again]


@pytest.mark.parametrize("status", [LeaseStatus.EXPIRED, LeaseStatus.REVOKED])
async def test_replayed_lease_that_was_taken_away_has_no_token(status, runner, control, sql):
    await control.create()
    await runner.register()
    request = {"request_id": str(uuid4())}
    held: Held = await runner.claim(**request)
    await end_lease(sql, held.id, status)

    [again] = (await runner.try_claim(**request)).json()["leases"]

    assert (again["lease"]["status"], again["lease_token"]) == (status, None)
