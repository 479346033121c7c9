"""Long polls: who waits is woken when there is something, and makes way when it should."""

import asyncio
from uuid import uuid4

import httpx

from app.domain.commands import ClaimLeases
from app.embedded.environment import ACCOUNTS, AUDIENCE
from app.handlers.leases import claim_leases
from app.main import create_app
from app.wiring import open_services
from tests.driver import Control, RunnerClient


async def waiting(runner, **fields):
    """A claim that waits, given time to begin."""
    task = asyncio.create_task(runner.try_claim(wait_seconds=20, **fields))
    await asyncio.sleep(0.2)
    assert not task.done()
    return task


async def test_a_waiting_claim_gets_the_attempt_as_soon_as_it_is_created(control, runner):
    await runner.register()
    claim = await waiting(runner)

    attempt = await control.create()
    answer = await asyncio.wait_for(claim, 5)

    assert answer.json()["leases"][0]["attempt"]["id"] == attempt["id"]


async def test_a_newer_try_of_the_same_claim_takes_over_from_the_waiting_one(control, runner):
    await runner.register()
    request_id = str(uuid4())
    older = await waiting(runner, request_id=request_id)

    newer = await waiting(runner, request_id=request_id)

    answer = await asyncio.wait_for(older, 5)
    assert (answer.status_code, answer.json()["reason"]) == (409, "superseded")
    await control.create()
    assert len((await asyncio.wait_for(newer, 5)).json()["leases"]) == 1


async def test_a_waiting_claim_of_a_runner_that_was_drained_gets_nothing(
    control, runner, make_runner, http, issuer
):
    operator = Control(http, issuer[0].mint(ACCOUNTS["operator"], AUDIENCE))
    await runner.register()
    claim = await waiting(runner)
    await operator.call("POST", f"/v1/runners/{runner.id}:drain")

    attempt = await control.create()
    other = await make_runner().register()
    held = await other.claim(wait_seconds=5)

    assert held.attempt_id == attempt["id"]
    claim.cancel()


async def test_a_client_that_has_gone_gets_nothing(services, control, runner):
    """It hung up while it waited; its claim ends with nothing, and the attempt stays for others."""
    await runner.register()
    hung_up = asyncio.Event()

    async def gone() -> bool:
        return hung_up.is_set()

    command = ClaimLeases(
        runner_id=runner.id, session_id=runner.session_id, request_id=uuid4(), wait_seconds=20
    )
    claim = asyncio.create_task(claim_leases(services, command, gone))
    await asyncio.sleep(0.2)
    hung_up.set()

    attempt = await control.create()

    assert await asyncio.wait_for(claim, 5) == []
    assert (await runner.claim()).attempt_id == attempt["id"]


async def test_waiting_holds_no_database_connection(make_settings, issuer):
    settings = make_settings(DATABASE__POOL_SIZE=2)
    token = issuer[0].mint(ACCOUNTS["runner"], AUDIENCE)
    async with open_services(settings) as services:
        transport = httpx.ASGITransport(create_app(services))
        async with httpx.AsyncClient(transport=transport, base_url="https://t") as http:
            runners = [await RunnerClient(http, token).register() for _ in range(12)]
            claims = [asyncio.create_task(one.try_claim(wait_seconds=2)) for one in runners]
            await asyncio.sleep(0.7)
            in_use = services.database.in_use
            answers = await asyncio.gather(*claims)

    assert in_use <= 1
    assert {answer.status_code for answer in answers} == {200}


async def test_as_many_waiters_are_woken_as_there_is_work(control, make_runner):
    runners = [await make_runner().register() for _ in range(5)]
    claims = [await waiting(one) for one in runners]

    created = {(await control.create())["id"] for _ in range(3)}
    done, pending = await asyncio.wait(claims, timeout=3)

    got = [claim.result().json()["leases"][0]["attempt"]["id"] for claim in done]
    assert set(got) == created
    assert len(pending) == 2
    for claim in pending:
        claim.cancel()


async def test_a_draining_instance_sends_its_waiters_away(services, runner):
    await runner.register()
    claim = await waiting(runner)

    services.signals.drain()

    answer = await asyncio.wait_for(claim, 2)
    assert (answer.status_code, answer.json()["reason"]) == (503, "draining")
    assert answer.headers["Retry-After"]


async def test_a_cancel_reaches_the_signals_poll_at_once(control, runner):
    attempt = await control.create()
    await runner.register()
    held = await runner.start()
    poll = asyncio.create_task(
        runner.call(
            "GET",
            f"/v1/leases/{held.id}/signals",
            params={"wait_seconds": 20},
            headers={"Lease-Token": held.token},
        )
    )
    await asyncio.sleep(0.2)

    await control.call("POST", f"/v1/attempts/{attempt['id']}:cancel", json={"reason": "why"})
    answer = (await asyncio.wait_for(poll, 2)).json()

    assert (answer["action"], answer["cancel_reason"]) == ("cancel", "why")


async def test_who_waits_for_the_end_of_an_attempt_is_told_when_it_ends(control, runner):
    attempt = await control.create()
    await runner.register()
    held = await runner.start()
    waiter = asyncio.create_task(
        control.call("GET", f"/v1/attempts/{attempt['id']}", params={"wait_seconds": 20})
    )
    await asyncio.sleep(0.2)

    await held.complete()

    assert (await asyncio.wait_for(waiter, 2)).json()["status"] == "succeeded"
