"""When cron expressions come due, and what is made of due times that were missed."""

from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain import crontimes
from app.domain.schedules import (
    Pending,
    Timing,
    due_text,
    fire_at,
    fire_id,
    plan,
    render,
    trigger_id,
)

MINUTE = timedelta(minutes=1)
START = datetime(2026, 6, 1, tzinfo=UTC)
BEFORE_SPRING, BEFORE_AUTUMN = "2026-03-28T12:00+01:00", "2026-10-24T12:00+02:00"


def times(cron: str, after: str, count: int, zone: str = "Europe/Berlin") -> list[str]:
    place = crontimes.find_zone(zone)
    found = crontimes.times_after(cron, place, datetime.fromisoformat(after))
    return [f"{one.astimezone(place):%m-%d %H:%M:%S%z}"[:-2] for one in islice(found, count)]


@pytest.mark.parametrize(
    ("cron", "after", "due"),
    [
        ("0 2 * * *", "2026-06-01T00:00+02:00", ["06-01 02:00:00+02", "06-02 02:00:00+02"]),
        ("*/20 * * * *", "2026-06-01T00:00+02:00", ["06-01 00:20:00+02", "06-01 00:40:00+02"]),
        ("10 0 2 * * *", "2026-06-01T02:00+02:00", ["06-01 02:00:10+02", "06-02 02:00:10+02"]),
        ("0 9 L * *", "2026-02-10T00:00+01:00", ["02-28 09:00:00+01", "03-31 09:00:00+02"]),
        ("0 9 * * MON#1", "2026-06-01T10:00+02:00", ["07-06 09:00:00+02", "08-03 09:00:00+02"]),
        # In spring 02:00 to 03:00 does not exist: what was due then is due when it ends, once.
        ("30 2 * * *", BEFORE_SPRING, ["03-29 03:00:00+02", "03-30 02:30:00+02"]),
        ("*/15 2 * * *", BEFORE_SPRING, ["03-29 03:00:00+02", "03-30 02:00:00+02"]),
        ("0 */2 * * *", "2026-03-29T00:00+01:00", ["03-29 03:00:00+02", "03-29 04:00:00+02"]),
        ("0 3 * * *", BEFORE_SPRING, ["03-29 03:00:00+02", "03-30 03:00:00+02"]),
        ("0 * * * *", "2026-03-29T00:30+01:00", ["03-29 01:00:00+01", "03-29 03:00:00+02"]),
        # In autumn 02:00 to 03:00 comes twice: what is due at a time is due the first time only.
        ("30 2 * * *", BEFORE_AUTUMN, ["10-25 02:30:00+02", "10-26 02:30:00+01"]),
        ("0 */2 * * *", "2026-10-25T01:00+02:00", ["10-25 02:00:00+02", "10-25 04:00:00+01"]),
        ("30 2 * * *", "2026-10-25T02:10+01:00", ["10-26 02:30:00+01", "10-27 02:30:00+01"]),
        # What is due every so often goes by time that passes.
        ("30 * * * *", "2026-10-25T02:00+02:00", ["10-25 02:30:00+02", "10-25 02:30:00+01"]),
    ],
)
def test_times_on_the_clock_of_a_place(cron, after, due):
    assert times(cron, after, 2) == due


def test_a_day_that_a_place_has_skipped_altogether_is_not_lost():
    due = times("0 12 * * *", "2011-12-29T00:00-10:00", 3, "Pacific/Apia")

    assert due == ["12-29 12:00:00-10", "12-31 00:00:00+14", "12-31 12:00:00+14"]


@settings(max_examples=200, deadline=None)
@given(
    zone=st.sampled_from(
        ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
    ),
    begin=st.integers(0, 3 * 365 * 86400).map(lambda passed: START + timedelta(seconds=passed)),
    minute=st.sampled_from(["0", "30", "*/7", "59"]),
    hour=st.sampled_from(["*", "2", "1,2,3", "*/3"]),
)
def test_due_times_grow_and_are_the_same_wherever_one_begins_to_look(zone, begin, minute, hour):
    cron, place = f"{minute} {hour} * * *", crontimes.find_zone(zone)
    found = list(islice(crontimes.times_after(cron, place, begin), 30))

    assert found == sorted(set(found))
    assert found[0] > begin
    for here, following in pairwise(found):
        assert next(crontimes.times_after(cron, place, here)) == following


@settings(max_examples=100, deadline=None)
@given(day=st.dates(date(2025, 1, 1), date(2030, 1, 1)))
def test_a_daily_time_comes_due_exactly_once_on_every_day_of_the_calendar(day):
    place = crontimes.find_zone("Europe/Berlin")
    begin = datetime(day.year, day.month, day.day, tzinfo=place) - timedelta(seconds=1)

    found = islice(crontimes.times_after("30 2 * * *", place, begin), 10)

    days = [one.astimezone(place).date() for one in found]
    assert days == [day + timedelta(days=more) for more in range(10)]


@pytest.mark.parametrize(
    "cron", ["", "* * * *", "60 * * * *", "* * * * * * *", "a b c d e", "0 0 31 2 *", "@daily"]
)
def test_what_is_no_cron_expression_is_refused(cron):
    with pytest.raises(ValueError, match=r"must have five fields|no cron expression"):
        crontimes.check(cron)


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../../etc/passwd", "/etc", "Europe"])
def test_what_is_no_time_zone_is_refused(name):
    with pytest.raises(ValueError, match="no time zone"):
        crontimes.find_zone(name)


# --- missed times --------------------------------------------------------------------------------


def pending(misfire: str = "once", limit: int = 3, cron: str = "* * * * *", jitter: int = 0):
    return Pending("nightly", Timing(cron, "UTC", None, jitter), misfire, limit, START)


def minutes(times_: list[datetime]) -> list[int]:
    return [round((one - START) / MINUTE) for one in times_]


@pytest.mark.parametrize("misfire", ["skip", "once", "all"])
def test_what_is_on_time_is_sent_whatever_the_policy(misfire):
    planned = plan(pending(misfire), START + timedelta(seconds=30), MINUTE)

    assert (minutes(planned.fired), planned.skipped) == ([0], [])
    assert planned.next_due_at == START + MINUTE


@pytest.mark.parametrize(
    ("misfire", "fired", "skipped"),
    [
        ("skip", [], list(range(11))),
        ("once", [10], list(range(10))),
        ("all", [8, 9, 10], list(range(8))),
    ],
)
def test_what_was_missed_is_settled_by_the_policy(misfire, fired, skipped):
    late = pending(misfire, cron="0-10 0 * * *")
    planned = plan(late, START + timedelta(hours=5), MINUTE)

    assert (minutes(planned.fired), minutes(planned.skipped)) == (fired, skipped)
    assert planned.next_due_at == START + timedelta(days=1)


def test_one_on_time_stands_for_those_that_were_missed_before_it():
    planned = plan(pending("once"), START + 10 * MINUTE + timedelta(seconds=30), MINUTE)

    assert (minutes(planned.fired), minutes(planned.skipped)) == ([10], list(range(10)))


@pytest.mark.parametrize(("misfire", "sent"), [("skip", 1), ("once", 1), ("all", 4)])
def test_after_a_very_long_time_off_it_takes_several_passes_and_the_policy_still_holds(
    misfire, sent
):
    now = START + timedelta(days=100) + timedelta(seconds=30)
    at, fired, skipped, passes = START, [], [], 0
    while at <= now:
        one = Pending("nightly", Timing("* * * * *", "UTC", None, 0), misfire, 3, at)
        planned = plan(one, now, MINUTE)
        fired += planned.fired
        skipped += planned.skipped
        at = planned.next_due_at
        passes += 1

    assert passes > 100
    assert len(fired) == sent
    assert len(fired) + len(skipped) == 100 * 24 * 60 + 1
    assert fired == sorted(fired)
    assert max(skipped) < min(fired)


def test_a_single_time_comes_due_once():
    timing = Timing(None, "UTC", START, 0)
    planned = plan(Pending("once", timing, "once", 1, START), START + timedelta(days=1), MINUTE)

    assert (planned.fired, planned.skipped, planned.next_due_at) == ([START], [], None)


@settings(max_examples=200, deadline=None)
@given(
    misfire=st.sampled_from(["skip", "once", "all"]),
    limit=st.integers(1, 500),
    missed=st.integers(0, 3000),
    jitter=st.sampled_from([0, 10, 300]),
)
def test_every_due_time_up_to_now_is_either_sent_or_skipped(misfire, limit, missed, jitter):
    now = START + missed * MINUTE + timedelta(seconds=1)
    one = pending(misfire, limit, jitter=jitter)
    planned = plan(one, now, MINUTE)
    settled = sorted(planned.fired + planned.skipped)

    expected, time = [], START
    while time < planned.next_due_at:
        expected.append(time)
        time += MINUTE
    assert settled == expected
    assert all(fire_at(one.name, one.timing, time) <= now for time in settled)


# --- identity ------------------------------------------------------------------------------------


def test_id_of_a_due_time_is_the_same_for_ever():
    assert fire_id("nightly", START) == UUID("e311245e-3f1f-5a3f-970b-7e7bcdbe3c31")
    assert fire_id("nightly", START.astimezone(crontimes.find_zone("Asia/Tokyo"))) == fire_id(
        "nightly", START
    )
    assert fire_id("nightly", START + MINUTE) != fire_id("nightly", START)
    assert fire_id("hourly", START) != fire_id("nightly", START)
    assert trigger_id("nightly", UUID(int=1)) != trigger_id("nightly", UUID(int=2))


def test_jitter_spreads_and_is_the_same_for_everybody():
    timing = Timing("* * * * *", "UTC", None, 300)
    offsets = {(fire_at(f"s{n}", timing, START) - START).total_seconds() for n in range(200)}

    assert min(offsets) >= 0
    assert max(offsets) < 300
    assert len(offsets) > 190
    assert fire_at("s1", timing, START) == fire_at("s1", timing, START)


def test_due_time_is_filled_into_texts_and_nowhere_else():
    data = {"{{due_at}}": ["at {{due_at}}", 1, None], "b": {"c": "{{due_at}}{{due_at}}"}}

    assert render(data, START) == {
        "{{due_at}}": ["at 2026-06-01T00:00:00Z", 1, None],
        "b": {"c": "2026-06-01T00:00:00Z" * 2},
    }
    assert due_text(START) == "2026-06-01T00:00:00Z"
