"""What a runner may do under a lease, and how it is told that it may not."""

import asyncio
from uuid import uuid4

import pytest

from app.domain.lifecycle import LeaseStatus
from tests.api.conftest import end_lease
from tests.driver import Held

VERBS = {
    "start": lambda held, **more: held.post("start", **more),
    "heartbeat": lambda held, **more: held.post(
        "heartbeat", {"session_id": held.runner.session_id, "sequence": 1}, **more
    ),
    "complete": lambda held, **more: held.post("complete", {"outcome": "succeeded"}, **more),
    "release": lambda held, **more: held.post("release", **more),
}
each_verb = pytest.mark.parametrize("verb", VERBS)


def is_refusal(answer, status: int, reason: str) -> bool:
    return (answer.status_code, answer.json()["reason"]) == (status, reason)


@pytest.fixture
async def held(control, runner) -> Held:
    """A lease that was claimed, and nothing more."""
    await control.create()
    return await (await runner.register()).claim()


@pytest.fixture
async def started(held) -> Held:
    assert (await held.start()).status_code == 200
    return held


# --- the proof of a lease -------------------------------------------------------------------------


@each_verb
@pytest.mark.parametrize("began", [True, False])
@pytest.mark.parametrize("token", ["", "x", "lt_" + "A" * 43, "ä", "x" * 200])
async def test_wrong_token_is_refused_and_changes_nothing(verb, began, token, held, control):
    if began:
        await held.start()
    before = await control.get(held.attempt_id)

    answer = await VERBS[verb](held, token=token.encode())

    assert is_refusal(answer, 403, "lease-token-invalid"), answer.text
    assert "action" not in answer.json()
    assert await control.get(held.attempt_id) == before


@each_verb
async def test_token_of_another_lease_is_refused(verb, held, control, make_runner):
    await control.create()
    other = await (await make_runner().register()).claim()

    answer = await VERBS[verb](held, token=other.token)

    assert is_refusal(answer, 403, "lease-token-invalid")
    assert await control.status(held.attempt_id) == "leased"


@each_verb
async def test_wrong_token_learns_nothing_of_how_a_lease_ended(verb, started):
    await started.complete()

    answer = await VERBS[verb](started, token="lt_wrong")

    assert is_refusal(answer, 403, "lease-token-invalid")
    assert "attempt" not in answer.json()


@each_verb
async def test_unknown_lease_is_not_found(verb, held):
    held.lease = held.lease | {"id": str(uuid4())}

    assert is_refusal(await VERBS[verb](held), 404, "lease-not-found")


@each_verb
@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (LeaseStatus.EXPIRED, "lease-expired"),
        (LeaseStatus.REVOKED, "lease-revoked"),
        (LeaseStatus.RELEASED, "lease-released"),
    ],
)
async def test_ended_lease_says_what_became_of_it_and_to_stop(
    verb, status, reason, started, sql, control
):
    await end_lease(sql, started.id, status)

    answer = await VERBS[verb](started)

    if verb == "release" and status is LeaseStatus.RELEASED:
        assert answer.status_code == 200
        return
    assert is_refusal(answer, 409, reason)
    assert answer.json()["action"] == "stop"
    assert answer.json()["attempt"]["id"] == started.attempt_id
    assert answer.json()["attempt"]["status"] == await control.status(started.attempt_id)


@each_verb
async def test_lease_of_a_completed_attempt_says_that_it_has_ended(verb, started):
    await started.complete("failed", failure_category="command_failed")

    answer = await VERBS[verb](started)

    assert is_refusal(answer, 409, "attempt-ended")
    assert answer.json()["attempt"] == {
        "id": started.attempt_id,
        "status": "failed",
        "failure_category": "command_failed",
    }


@each_verb
async def test_lease_of_a_replaced_session_says_so(verb, started):
    old_session, started.runner.session_id = started.runner.session_id, str(uuid4())
    await started.runner.register()
    started.runner.session_id = old_session

    answer = await VERBS[verb](started)

    assert is_refusal(answer, 409, "session-replaced")
    assert answer.json()["action"] == "stop"


# --- start ----------------------------------------------------------------------------------------


async def test_start_begins_the_work_and_tells_the_cadence(held, control):
    answer = await held.start()

    attempt = await control.get(held.attempt_id)
    assert answer.json() == {
        "lease_seconds": 30.0,
        "heartbeat_every_seconds": 10.0,
        "action": "continue",
        "lease_id": held.id,
        "attempt_id": held.attempt_id,
        "attempt_status": "running",
        "cancel_reason": None,
    }
    assert attempt["started_at"] >= attempt["leased_at"] >= attempt["created_at"]


async def test_repeated_start_is_answered_alike_and_written_once(held, control):
    answers = [await held.start() for _ in range(3)]
    answers += await asyncio.gather(*(held.start() for _ in range(5)))
    before = await control.get(held.attempt_id)

    assert {answer.status_code for answer in answers} == {200}
    assert await control.event_types(held.attempt_id) == ["created", "leased", "started"]
    assert await control.get(held.attempt_id) == before


async def test_start_gives_the_lease_its_whole_time(held, sql):
    await held.start()

    left = await sql.fetchval("SELECT expires_at - started_at FROM runner_leases")
    assert 25 < left.total_seconds() <= 30.1


# --- heartbeat ------------------------------------------------------------------------------------


async def test_beat_is_recorded_and_shown_on_the_lease(started, control):
    answer = await started.beat(phase="executing", progress_percent=40, message="half way")

    [beat] = await control.list_of(started.attempt_id, "heartbeats")
    [lease] = await control.list_of(started.attempt_id, "leases")
    assert answer.json()["action"] == "continue"
    assert (beat["phase"], beat["progress_percent"]) == ("executing", 40)
    assert beat["message"] == "half way"
    assert beat["runner_instance_id"] == started.runner.id
    assert (lease["phase"], lease["progress_percent"]) == ("executing", 40)


async def test_every_beat_renews_the_lease(started, sql):
    for body in ({}, {"phase": "executing"}, {"progress_percent": 3}):
        await sql.execute("UPDATE runner_leases SET expires_at = now() + interval '2 s'")

        await started.beat(**body)

        left = await sql.fetchval("SELECT expires_at - clock_now() FROM runner_leases")
        assert left.total_seconds() > 20


async def test_renewal_never_shortens_a_lease(started, sql):
    await sql.execute("UPDATE runner_leases SET expires_at = now() + interval '1 h'")

    await started.beat()
    await started.start()

    left = await sql.fetchval("SELECT expires_at - clock_now() FROM runner_leases")
    assert left.total_seconds() > 3000


@pytest.mark.parametrize("sequence", [1, 6, 7])
async def test_beat_that_is_not_newer_only_renews(sequence, started, control, sql):
    started.sequence = 6
    await started.beat(phase="executing", progress_percent=40, message="newer")
    await sql.execute("UPDATE runner_leases SET expires_at = now() + interval '2 s'")
    before = [await control.list_of(started.attempt_id, what) for what in ("heartbeats", "events")]

    started.sequence = sequence - 1
    answer = await started.beat(phase="completing", progress_percent=1, message="older")

    [lease] = await control.list_of(started.attempt_id, "leases")
    left = await sql.fetchval("SELECT expires_at - clock_now() FROM runner_leases")
    assert answer.status_code == 200
    assert (lease["phase"], lease["progress_percent"]) == ("executing", 40)
    assert left.total_seconds() > 20
    assert before == [
        await control.list_of(started.attempt_id, what) for what in ("heartbeats", "events")
    ]


async def test_change_of_phase_is_one_event(started, control):
    for phase in ("pulling_artifacts", "pulling_artifacts", None, "executing", "executing"):
        await started.beat(**({"phase": phase} if phase else {}))

    events = [e for e in await control.events(started.attempt_id) if e["event_type"] == "heartbeat"]
    assert [event["payload"]["phase"] for event in events] == ["pulling_artifacts", "executing"]
    assert len(await control.list_of(started.attempt_id, "heartbeats")) == 5


async def test_what_a_beat_leaves_out_stays_as_it_was(started, control):
    await started.beat(phase="executing", progress_percent=40)
    await started.beat()
    await started.beat(progress_percent=0)

    beats = await control.list_of(started.attempt_id, "heartbeats")
    assert [(beat["phase"], beat["progress_percent"]) for beat in beats] == [
        ("executing", 0),
        ("executing", 40),
        ("executing", 40),
    ]


async def test_beats_at_once_are_all_answered_and_each_recorded_once(started, control):
    answers = await asyncio.gather(
        *(started.beat(phase=("executing", "completing")[n % 2]) for n in range(20))
    )

    beats = await control.list_of(started.attempt_id, "heartbeats")
    numbers = [event["event_number"] for event in await control.events(started.attempt_id)]
    assert {answer.status_code for answer in answers} == {200}
    assert 1 <= len(beats) <= 20
    assert numbers == list(range(1, len(numbers) + 1))


async def test_beat_of_another_session_is_refused(started):
    answer = await started.post("heartbeat", {"session_id": str(uuid4()), "sequence": 9})

    assert is_refusal(answer, 409, "session-replaced")


async def test_beat_before_the_start_keeps_the_lease_alive_and_starts_nothing(held, control, sql):
    answer = await held.beat(phase="pulling_artifacts")

    left = await sql.fetchval("SELECT expires_at - clock_now() FROM runner_leases")
    assert answer.json()["attempt_status"] == "leased"
    assert left.total_seconds() > 20
    assert await control.event_types(held.attempt_id) == ["created", "leased", "heartbeat"]


async def test_beat_after_the_end_changes_nothing(started, control):
    await started.complete()
    before = await control.get(started.attempt_id)

    answers = [await started.beat(phase="executing", progress_percent=3) for _ in range(3)]

    assert all(is_refusal(answer, 409, "attempt-ended") for answer in answers)
    assert await control.get(started.attempt_id) == before
    assert await control.list_of(started.attempt_id, "heartbeats") == []


# --- complete -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "given", "category"),
    [
        ("succeeded", {}, None),
        ("failed", {"failure_category": "permission_denied"}, "permission_denied"),
        ("cancelled", {}, "cancelled"),
        ("cancelled", {"failure_category": "cancelled"}, "cancelled"),
        ("timed_out", {}, "timeout"),
        ("timed_out", {"failure_category": "timeout"}, "timeout"),
    ],
)
async def test_completion_is_stored_as_the_runner_said_it(
    outcome, given, category, started, control
):
    answer = await started.complete(
        outcome, failure_message="because", result={"exit_code": 0}, **given
    )

    attempt = await control.get(started.attempt_id)
    [lease] = await control.list_of(started.attempt_id, "leases")
    last = (await control.events(started.attempt_id))[-1]
    assert answer.json() == {"attempt": attempt}
    assert (attempt["status"], attempt["failure_category"]) == (outcome, category)
    assert (attempt["failure_message"], attempt["result"]) == ("because", {"exit_code": 0})
    assert attempt["stop_confirmed"] is True
    assert (lease["status"], lease["released_at"]) == ("released", attempt["finished_at"])
    assert (last["event_type"], last["created_at"]) == (outcome, attempt["finished_at"])


async def test_completion_before_the_start_begins_and_ends_the_attempt(held, control):
    answer = await held.complete(result={"exit_code": 0})

    attempt = await control.get(held.attempt_id)
    types = await control.event_types(held.attempt_id)
    assert answer.status_code == 200
    assert attempt["status"] == "succeeded"
    assert attempt["started_at"] <= attempt["finished_at"]
    assert types == ["created", "leased", "started", "succeeded"]


@pytest.mark.parametrize("began", [True, False])
async def test_same_completion_again_has_the_same_answer(began, held, control):
    if began:
        await held.start()
    body = {"outcome": "succeeded", "result": {"a": 1, "b": 2.0}}
    first = await held.post("complete", body)

    again = [
        await held.post("complete", body),
        await held.post("complete", {"result": {"b": 2, "a": 1.0}, "outcome": "succeeded"}),
    ]

    assert "Idempotent-Replayed" not in first.headers
    for answer in again:
        assert (answer.status_code, answer.json()) == (200, first.json())
        assert answer.headers["Idempotent-Replayed"] == "true"
    assert (await control.event_types(held.attempt_id)).count("succeeded") == 1


@pytest.mark.parametrize(
    "other",
    [
        {"outcome": "succeeded", "result": {"exit_code": 1}},
        {"outcome": "succeeded"},
        {"outcome": "succeeded", "result": {"exit_code": 0}, "failure_message": ""},
        {"outcome": "cancelled", "result": {"exit_code": 0}},
        {"outcome": "failed", "failure_category": "internal"},
    ],
)
async def test_different_completion_is_refused_and_the_first_stays(other, started, control):
    await started.complete("succeeded", result={"exit_code": 0})
    before = await control.get(started.attempt_id)

    answer = await started.post("complete", other)

    assert is_refusal(answer, 409, "attempt-ended")
    assert answer.json()["attempt"]["status"] == "succeeded"
    assert await control.get(started.attempt_id) == before


@pytest.mark.parametrize("began", [True, False])
async def test_two_different_completions_in_one_tick_are_one_success_and_one_refusal(
    began, control, runner
):
    rounds = 25
    await runner.register(capacity_total=rounds)
    for _ in range(rounds):
        await control.create()
    leases = await runner.claim_all(max_leases=rounds)
    assert len(leases) == rounds

    for held in leases:
        if began:
            await held.start()
        answers = await asyncio.gather(
            held.complete("succeeded", result={"exit_code": 0}),
            held.complete("failed", result={"exit_code": 1}),
        )

        ended = [t for t in await control.event_types(held.attempt_id) if t in _ENDS]
        assert sorted(answer.status_code for answer in answers) == [200, 409]
        [won] = [a.json()["attempt"]["status"] for a in answers if a.status_code == 200]
        [lost] = [a.json()["attempt"]["status"] for a in answers if a.status_code == 409]
        assert ended == [won]
        assert lost == await control.status(held.attempt_id) == won


_ENDS = {"succeeded", "failed", "cancelled", "timed_out", "lost"}


async def test_equal_completions_in_one_tick_all_succeed(held, control):
    answers = await asyncio.gather(*(held.complete(result={"x": 1}) for _ in range(10)))

    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert (await control.event_types(held.attempt_id))[2:] == ["started", "succeeded"]


async def test_completion_after_expiry_is_refused_and_kept_as_a_late_word_once(
    started, control, sql
):
    await end_lease(sql, started.id, LeaseStatus.EXPIRED)
    status = await control.status(started.attempt_id)

    answers = [await started.complete(result={"late": True}) for _ in range(3)]

    events = await control.events(started.attempt_id)
    words = [event for event in events if event["event_type"] == "late_result"]
    assert all(is_refusal(answer, 409, "lease-expired") for answer in answers)
    assert await control.status(started.attempt_id) == status
    assert len(words) == 1
    assert words[0]["payload"]["lease_id"] == started.id
    assert (await control.get(started.attempt_id))["result"] is None


async def test_number_and_time_of_events_only_grow(started, control):
    for phase in ("executing", "uploading_artifacts", "completing"):
        await started.beat(phase=phase)
    await started.complete()

    events = await control.events(started.attempt_id)
    assert [event["event_number"] for event in events] == list(range(1, len(events) + 1))
    assert [event["created_at"] for event in events] == sorted(e["created_at"] for e in events)
    assert len({event["id"] for event in events}) == len(events)
