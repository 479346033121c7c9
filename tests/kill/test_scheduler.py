"""One leader out of many, whatever happens to them: each due time has one message and effect."""

import asyncio
import signal
from uuid import uuid4

import pytest

from tests.kill.fleet import Fleet


@pytest.fixture
async def make_fleet(fresh_database, objects, issuer, tmp_path, capsys):
    made: list[Fleet] = []

    def tell(figures: str) -> None:
        with capsys.disabled():
            print(f"\n{figures}", end="")  # noqa: T201 - figures are meant to be seen

    async def make(ttl: float = 2, *, topic: bool = True) -> Fleet:
        made.append(Fleet(fresh_database, objects, issuer, tmp_path, ttl))
        made[-1].tell = tell
        return await made[-1].open(topic=topic)

    yield make
    for fleet in made:
        await fleet.close()


async def leaders_under_torment(
    fleet: Fleet, *, instances: int, schedules: int, seconds: float
) -> None:
    await fleet.start(instances)
    await fleet.until_led()
    names = await fleet.schedule(schedules)

    done = await fleet.torment(seconds)
    await fleet.settle(names, seconds=300)

    ticks = await fleet.check_ticks()
    gaps = await fleet.check_terms()
    fleet.tell(f"{ticks} ticks, each with one message and one effect; {done}")
    assert ticks >= schedules * seconds
    assert len(gaps) >= 2
    assert max(gaps) <= 3 * (fleet.ttl + 1), gaps


async def test_every_tick_has_one_message_while_leaders_are_killed_stopped_and_cut_off(make_fleet):
    fleet = await make_fleet(ttl=2)

    await leaders_under_torment(fleet, instances=4, schedules=4, seconds=20)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_ten_instances_for_five_minutes(make_fleet):
    fleet = await make_fleet(ttl=10)

    await leaders_under_torment(fleet, instances=10, schedules=10, seconds=300)


async def test_leader_that_is_asked_to_stop_hands_over_in_under_a_second(make_fleet):
    fleet = await make_fleet(ttl=30)
    await fleet.start(2)
    for _ in range(2):
        leading = await fleet.until_led()
        [other] = [one for one in fleet.instances if one is not leading]
        assert await leading.service.stop() == 0
        await fleet.until_led(by=[other], seconds=5)
        await leading.service.start()

    gaps = await fleet.check_terms()

    assert len(gaps) == 2
    assert max(gaps) < 1.0


async def test_leader_that_was_killed_is_replaced_within_its_time(make_fleet):
    fleet = await make_fleet(ttl=3)
    await fleet.start(2)
    leading = await fleet.until_led()
    [other] = [one for one in fleet.instances if one is not leading]

    leading.service.kill()
    await fleet.until_led(by=[other])

    [gap] = await fleet.check_terms()
    assert gap <= fleet.ttl + 1


async def test_leader_that_was_stopped_for_long_writes_nothing_when_it_wakes(make_fleet):
    """SIGSTOP keeps its connections open, and with them whatever transaction was going on."""
    fleet = await make_fleet(ttl=2, topic=False)
    await fleet.start(2)
    names = await fleet.schedule(3)
    for _ in range(2):
        leading = await fleet.until_led()
        [other] = [one for one in fleet.instances if one is not leading]
        leading.service.kill(signal.SIGSTOP)
        await fleet.until_led(by=[other])
        await asyncio.sleep(4)
        leading.service.kill(signal.SIGCONT)
        await asyncio.sleep(1)
        assert await fleet.leader() is other

    await fleet.settle(names)
    assert await fleet.check_ticks() > 0
    await fleet.check_terms()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_leader_that_was_stopped_for_a_minute(make_fleet):
    fleet = await make_fleet(ttl=10, topic=False)
    await fleet.start(2)
    names = await fleet.schedule(3)
    leading = await fleet.until_led()
    [other] = [one for one in fleet.instances if one is not leading]
    leading.service.kill(signal.SIGSTOP)
    await fleet.until_led(by=[other])
    await asyncio.sleep(60)
    leading.service.kill(signal.SIGCONT)
    await asyncio.sleep(2)

    assert await fleet.leader() is other
    await fleet.settle(names)
    assert await fleet.check_ticks() > 0
    gaps = await fleet.check_terms()
    assert max(gaps) <= fleet.ttl + 1


@pytest.mark.parametrize(
    ("moment", "topic"),
    [
        ("leader.after_elect", False),
        ("schedule.after_due", False),
        ("schedule.after_fire", False),
        ("outbox.after_publish", False),
        ("outbox.after_publish", True),
    ],
)
async def test_leader_that_dies_at_a_named_moment_loses_nothing_and_doubles_nothing(
    make_fleet, moment, topic
):
    fleet = await make_fleet(ttl=1, topic=topic)
    deadly = {moment: {"action": "kill", "times": 1}}
    [doomed] = await fleet.start(
        1, "doomed", TESTING__ALLOW_FAILPOINTS="true", TESTING__FAILPOINTS=deadly
    )
    [healthy] = await fleet.start(1, "healthy")
    names = await fleet.schedule(2)

    await fleet.until_led(by=[healthy])
    await asyncio.sleep(2)
    await fleet.settle(names)

    assert doomed.service.has_ended, "the moment was never reached"
    assert await fleet.check_ticks() >= 2
    await fleet.check_terms()


async def test_sessions_that_are_terminated_again_and_again_cost_no_tick(make_fleet):
    fleet = await make_fleet(ttl=2, topic=False)
    await fleet.start(2)
    names = await fleet.schedule(3)
    for _ in range(20):
        await fleet.sql.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await asyncio.sleep(0.3)

    await fleet.settle(names)

    assert await fleet.check_ticks() >= 3 * 3  # the last three seconds need not have come yet
    await fleet.check_terms()


async def test_trigger_whose_answer_was_lost_is_repeated_and_sends_one_message(make_fleet):
    fleet = await make_fleet(ttl=2, topic=False)
    await fleet.start(2)
    await fleet.until_led()
    [name] = await fleet.schedule(1, "0 0 1 1 *")
    caller, body = fleet.caller("operator"), {"request_id": str(uuid4())}

    answers = [
        await caller.call("POST", f"/v1/schedules/{name}:trigger", json=body) for _ in range(4)
    ]
    await fleet.settle([name])

    assert len({answer.json()["id"] for answer in answers}) == 1
    assert await fleet.sql.fetchval("SELECT count(*) FROM execution_attempts") == 1


async def test_process_that_only_runs_sweeps_answers_for_its_health_and_nothing_else(make_fleet):
    fleet = await make_fleet(ttl=2, topic=False)
    [scheduler] = await fleet.start(1, "scheduler", ROLE="scheduler")
    [api] = await fleet.start(1, "api", ROLE="api")

    leading = await fleet.until_led()
    fleet.instances = [api]
    names = await fleet.schedule(1)
    await asyncio.sleep(3)
    await fleet.settle(names)
    fleet.instances = [scheduler]
    caller = fleet.caller("operator")
    refused = await caller.call("GET", "/v1/schedules")
    fleet.instances = [scheduler, api]

    assert leading is scheduler
    assert refused.status_code == 404
    assert await fleet.check_ticks() > 0
