"""When a cron expression comes due, in the time of a place, through changes of its clock.

An expression whose hours are given (anything but `*`) names times on the wall. A time that the
clock skips in spring comes due at the end of the gap; one that it shows twice in autumn comes due
the first time only. With `*` for the hours it goes by time that passes: every half hour is every
half hour on those days too.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_FIELDS = (5, 6)
_LAST_YEAR = 9990


def check(cron: str) -> None:
    """ValueError if it is no cron expression of five fields, or six with seconds first."""
    fields = cron.split()
    if len(fields) not in _FIELDS:
        raise ValueError("must have five fields, or six with the seconds first")
    try:
        CronSim(cron, datetime(2024, 1, 1))  # noqa: DTZ001 - a time on the wall
    except CronSimError as error:
        raise ValueError(f"is no cron expression: {str(error).lower()}") from None


def find_zone(name: str) -> tzinfo:
    """The time zone of that name in the IANA database. ValueError if there is none."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):
        raise ValueError("is no time zone, such as Europe/Berlin") from None


def times_after(cron: str, zone: tzinfo, moment: datetime) -> Iterator[datetime]:
    """The due times later than `moment`, in order and in UTC; none may be left."""
    last = moment
    for time in _times(cron, zone, moment):
        if time.year > _LAST_YEAR:
            return
        if time > last:
            last = time
            yield time


def _times(cron: str, zone: tzinfo, moment: datetime) -> Iterator[datetime]:
    local = moment.astimezone(zone)
    if cron.split()[-4] == "*":
        return (time.astimezone(UTC) for time in CronSim(cron, local))
    return (_instant(wall, zone) for wall in CronSim(cron, local.replace(tzinfo=None)))


def _instant(wall: datetime, zone: tzinfo) -> datetime:
    """The moment at which a clock there shows this first, or the end of the gap that skips it."""
    while True:
        instant = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
        if instant.astimezone(zone).replace(tzinfo=None) == wall:
            return instant
        wall = wall.replace(second=0) + timedelta(minutes=1)
