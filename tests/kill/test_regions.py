"""Two regions against one database: one is cut off from it, and the other goes on."""

import asyncio
from contextlib import suppress

import httpx
import pytest

from app.store import leaders
from tests.driver import new_attempt
from tests.kill.fleet import Fleet, Instance
from tests.kill.test_scheduler import make_fleet
from tests.kill.world import Bot, Journal

__all__ = ["make_fleet"]


async def ready(one: Instance) -> int:
    async with httpx.AsyncClient(timeout=30) as http:
        with suppress(httpx.HTTPError):
            return (await http.get(f"{one.service.url}/readyz")).status_code
    return 0


async def until_ready(one: Instance, status: int) -> None:
    async with asyncio.timeout(60):
        while await ready(one) != status:
            await asyncio.sleep(0.2)


async def regions_of_terms(fleet: Fleet) -> list[str]:
    history = await leaders.list_terms(fleet.sql, leaders.SCHEDULER, 100)
    return [one.label.rstrip("0123456789") for one in reversed(history)]


@pytest.mark.timeout(180)
async def test_region_that_is_cut_off_stops_leading_and_the_other_takes_over(make_fleet):
    fleet = await make_fleet(ttl=2, topic=False)
    west = await fleet.start(2, "west", DATABASE__CONNECT_TIMEOUT_SECONDS=2)
    await fleet.until_led(by=west)
    east = await fleet.start(2, "east", DATABASE__CONNECT_TIMEOUT_SECONDS=2)
    names = await fleet.schedule(2)
    journal, done = Journal(), asyncio.Event()
    working = [
        asyncio.create_task(Bot(fleet.caller("runner"), journal).run_until(done)) for _ in range(2)
    ]

    for one in west:
        one.proxy.cut()
    leading = await fleet.until_led(by=east)
    created = await create_in(fleet, east)
    await until_ready(west[0], 503)
    for one in west:
        one.proxy.heal()
    await until_ready(west[0], 200)
    still = await fleet.leader()
    await create_in(fleet, west)

    await fleet.settle(names, seconds=100)
    await until_succeeded(fleet)
    done.set()
    await asyncio.gather(*working)
    assert leading in east
    assert still in east, "a region that comes back takes nothing from the one that leads"
    assert created == 201
    assert await regions_of_terms(fleet) == ["west", "east"]
    journal.assert_nothing_ran_twice()
    [gap] = await fleet.check_terms()
    assert gap <= 3 * (fleet.ttl + 1)


async def create_in(fleet: Fleet, region: list[Instance]) -> int:
    """Ask that region alone, without trying the other one."""
    everybody, fleet.instances = fleet.instances, region
    caller = fleet.caller("control-plane")
    fleet.instances = everybody
    answer = await caller.call("POST", "/v1/attempts", json=new_attempt())
    return answer.status_code


async def until_succeeded(fleet: Fleet) -> None:
    async with asyncio.timeout(60):
        while await fleet.sql.fetchval(
            "SELECT count(*) FROM execution_attempts WHERE status <> 'succeeded'"
        ):
            await asyncio.sleep(0.2)
