"""What happens to callers while an issuer's key endpoint is down, slow, wrong or changing."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from types import SimpleNamespace
from uuid import uuid4

import httpx
import pytest

from app.auth.key_source import MAX_DOCUMENT_BYTES, FetchFailed, KeySource, fresh_seconds
from app.domain.errors import IdentityUnavailable, Unauthenticated
from app.settings import IssuerSettings

HOUR = 3_600


def _answers(*args, **kwargs):
    return lambda server, _good: server.answer_with(*args, **kwargs)


def _answers_no_http(server, _good):
    server.answer = b"SSH-2.0-OpenSSH_9.6\r\n"


def _is_silent(server, _good):
    server.answering.clear()


def _drips(server, _good):
    server.dripping = True


FAULTS = {
    "503": ("status", _answers("try later", status=503)),
    "404 with a good body": ("status", lambda server, good: server.answer_with(good, status=404)),
    "a redirect": ("status", _answers("", status=302, headers={"location": "/certs"})),
    "HTML": ("no-keys", _answers("<html>Sign in to the network</html>")),
    "nothing": ("no-keys", _answers("")),
    "an empty object": ("no-keys", _answers("{}")),
    "a list": ("no-keys", _answers("[]")),
    "no certificates": ("no-keys", _answers('{"a": "-----BEGIN CERTIFICATE-----", "b": 1}')),
    "deep nesting": ("no-keys", _answers("[" * 100_000)),
    "truncated": ("connection", lambda server, good: server.answer_with(good, cut=40)),
    "truncated at the origin": ("no-keys", lambda server, good: server.answer_with(good[:-40])),
    "too large": (
        "too-large",
        lambda server, good: server.answer_with(good + " " * MAX_DOCUMENT_BYTES),
    ),
    "compressed": (
        "no-keys",
        lambda server, good: server.answer_with(
            gzip.compress(good.encode()), headers={"content-encoding": "gzip"}
        ),
    ),
    "no HTTP": ("connection", _answers_no_http),
    "silence": ("timeout", _is_silent),
    "drops": ("timeout", _drips),
}


@pytest.fixture(params=FAULTS.values(), ids=FAULTS)
def fault(request, server, keys):
    """One way for the endpoint to fail: `begin`, `end`, and the cause that is noted."""
    cause, begin = request.param
    good = json.dumps({keys.current.key_id: keys.current.certificate()})

    def end():
        server.publish(keys.current)
        server.dripping = False
        server.answering.set()

    return SimpleNamespace(cause=cause, begin=lambda: begin(server, good), end=end)


async def test_broken_endpoint_is_noted_with_its_cause(http, server, fault):
    issuer = IssuerSettings(issuers=("i",), certificates_url=server.url)
    source = KeySource.of("google", issuer, timeout_seconds=0.1)
    fault.begin()

    with pytest.raises(FetchFailed) as failure:
        await source.fetch(http)

    assert failure.value.cause == fault.cause
    assert failure.value.__context__ is None


async def test_warm_instance_goes_on_while_the_endpoint_is_broken(
    make_verifier, tokens, clock, server, fault
):
    verifier = make_verifier(certificate_timeout_seconds=0.1)
    await verifier.verify([f"Bearer {tokens.mint()}"])
    fault.begin()

    for hours in range(1, 24, 4):
        clock.move(4 * HOUR)
        for n in range(3):
            identity = await verifier.verify([f"Bearer {tokens.mint(jti=n)}"])
            await server.idle()
            assert identity.account
        assert server.requests == 2 + hours // 4


async def test_cold_instance_with_a_broken_endpoint_says_try_again_and_recovers_in_seconds(
    make_verifier, tokens, clock, server, fault
):
    verifier = make_verifier(certificate_timeout_seconds=0.1)
    token = tokens.mint()
    fault.begin()
    with pytest.raises(IdentityUnavailable):
        await verifier.verify([f"Bearer {token}"])
    fault.end()

    clock.move(1)
    identity = await verifier.verify([f"Bearer {token}"])

    assert identity.account


async def test_refused_connection_costs_a_warm_instance_nothing(verify, tokens, clock, server):
    await verify(tokens.mint())
    await server.stop()

    clock.move(HOUR)
    await verify(tokens.mint())
    await server.idle()
    identity = await verify(tokens.mint())

    assert identity.account


async def test_stale_keys_are_used_for_a_bounded_time_only(verify, tokens, clock, server):
    token = tokens.mint
    await verify(token())
    server.answer_with("", status=503)

    clock.move(HOUR + 86_399)
    await verify(token())
    clock.move(1)
    with pytest.raises(IdentityUnavailable):
        await verify(token())


async def test_verdict_does_not_outlive_the_keys_it_rests_on(make_verifier, tokens, clock, server):
    verifier = make_verifier(certificate_max_stale_seconds=0)
    server.answer_with(
        server.answer.partition(b"\r\n\r\n")[2], headers={"cache-control": "max-age=60"}
    )
    token = tokens.mint()
    await verifier.verify([f"Bearer {token}"])
    server.answer_with("", status=503)

    clock.move(60)
    with pytest.raises(IdentityUnavailable):
        await verifier.verify([f"Bearer {token}"])


async def test_slow_endpoint_does_not_hold_up_requests_whose_keys_are_stale(
    verify, tokens, clock, server
):
    await verify(tokens.mint())
    server.answering.clear()
    clock.move(HOUR)

    async with asyncio.timeout(1):
        identities = [await verify(tokens.mint(jti=n)) for n in range(20)]

    assert len(identities) == 20
    assert server.requests <= 2


async def test_failed_fetches_are_repeated_after_growing_pauses_not_per_request(
    verify, tokens, clock, server
):
    await verify(tokens.mint())
    server.answer_with("", status=503)
    clock.move(HOUR)

    fetched_at = []
    for second in range(120):
        before = server.requests
        for n in range(3):
            await verify(tokens.mint(jti=n))
            await server.idle()
        assert server.requests - before <= 1
        if server.requests > before:
            fetched_at.append(second)
        clock.move(1)

    assert fetched_at == [0, 1, 3, 7, 15, 31, 61, 91]


async def test_every_outage_begins_with_a_short_pause(verify, tokens, keys, clock, server):
    await verify(tokens.mint())
    for _ in range(3):
        server.answer_with("", status=503)
        clock.move(HOUR)
        await verify(tokens.mint())
        await server.idle()
        server.publish(keys.current)

        clock.move(1)
        fetched_before = server.requests
        await verify(tokens.mint())
        await server.idle()
        assert server.requests == fetched_before + 1


async def test_cold_requests_do_not_beat_on_a_broken_endpoint(verify, tokens, server):
    server.answer_with("", status=503)

    for _ in range(50):
        with pytest.raises(IdentityUnavailable):
            await verify(tokens.mint())

    assert server.requests == 1


async def test_hundred_cold_requests_share_one_fetch(verify, tokens, server):
    server.answering.clear()
    requests = [asyncio.create_task(verify(tokens.mint(jti=n))) for n in range(100)]
    await asyncio.sleep(0)
    server.answering.set()

    identities = await asyncio.gather(*requests)

    assert len(identities) == 100
    assert server.requests == 1


async def test_caller_that_hangs_up_does_not_end_the_fetch_of_the_others(verify, tokens, server):
    server.answering.clear()
    first = asyncio.create_task(verify(tokens.mint(jti=1)))
    second = asyncio.create_task(verify(tokens.mint(jti=2)))
    await asyncio.sleep(0)

    first.cancel()
    await asyncio.wait({first})
    server.answering.set()

    assert first.cancelled()
    assert (await second).account
    assert server.requests == 1


async def test_fresh_key_is_used_without_asking(verify, tokens, clock, server):
    for _ in range(59):
        await verify(tokens.mint())
        clock.move(60)

    assert server.requests == 1


async def test_keys_are_fetched_anew_beside_the_request_that_finds_them_stale(
    verify, tokens, keys, clock, server
):
    await verify(tokens.mint())
    server.publish(keys.current, keys.next)
    clock.move(HOUR)

    await verify(tokens.mint())
    await server.idle()
    identity = await verify(tokens.mint(key=keys.next))

    assert identity.account
    assert server.requests == 2


async def test_request_with_a_known_token_also_finds_keys_stale(
    make_verifier, tokens, keys, clock, server
):
    verifier = make_verifier()
    server.publish(keys.current, cache_control="max-age=60")
    token = tokens.mint()
    await verifier.verify([f"Bearer {token}"])
    server.publish(keys.next)
    clock.move(60)

    await verifier.verify([f"Bearer {token}"])
    await server.idle()
    with pytest.raises(Unauthenticated) as refusal:
        await verifier.verify([f"Bearer {token}"])

    assert refusal.value.cause == "unknown-key"


async def test_rotated_key_is_accepted_once_the_cooldown_is_over(
    verify, tokens, keys, clock, server
):
    await verify(tokens.mint())
    server.publish(keys.current, keys.next)
    clock.move(59)
    with pytest.raises(Unauthenticated):
        await verify(tokens.mint(key=keys.next))

    clock.move(1)
    identity = await verify(tokens.mint(key=keys.next))

    assert identity.account
    assert server.requests == 2


async def test_key_that_was_withdrawn_is_refused(verify, tokens, keys, clock, server):
    await verify(tokens.mint())
    server.publish(keys.next)
    clock.move(60)

    await verify(tokens.mint(key=keys.next))
    with pytest.raises(Unauthenticated) as refusal:
        await verify(tokens.mint())

    assert refusal.value.cause == "unknown-key"


@pytest.mark.parametrize("waited", [0, 59, 60])
async def test_five_thousand_invented_key_ids_cause_at_most_one_fetch(
    verify, tokens, clock, server, waited
):
    await verify(tokens.mint())
    clock.move(waited)
    head = tokens.mint(header={"kid": "*"})
    forged = [_with_key_id(head, uuid4().hex) for _ in range(5_000)]

    outcomes = await asyncio.gather(*map(verify, forged), return_exceptions=True)

    assert {outcome.cause for outcome in outcomes} == {"unknown-key"}
    assert server.requests == 1 + (waited == 60)


async def test_invented_key_ids_are_refused_at_once_while_the_endpoint_is_slow(
    verify, tokens, clock, server
):
    await verify(tokens.mint())
    clock.move(60)
    server.answering.clear()
    head = tokens.mint()
    flood = [asyncio.create_task(verify(_with_key_id(head, uuid4().hex))) for _ in range(500)]
    await asyncio.sleep(0)

    async with asyncio.timeout(2):
        identity = await verify(tokens.mint(jti="a heartbeat meanwhile"))
    refused_meanwhile = sum(task.done() for task in flood)
    server.answering.set()
    await asyncio.wait(flood)

    assert identity.account
    assert refused_meanwhile == 500 - 32
    assert {task.exception().cause for task in flood} == {"unknown-key"}
    assert server.requests == 2


async def test_unknown_keys_fail_alone_while_the_endpoint_is_broken(verify, tokens, clock, server):
    await verify(tokens.mint())
    server.answer_with("", status=503)
    clock.move(60)

    with pytest.raises(Unauthenticated) as refusal:
        await verify(_with_key_id(tokens.mint(), "invented"))
    identity = await verify(tokens.mint())

    assert refusal.value.cause == "unknown-key"
    assert identity.account


async def test_token_that_came_before_its_key_is_accepted_after_it(
    verify, tokens, keys, clock, server
):
    token = tokens.mint(key=keys.next)
    with pytest.raises(Unauthenticated):
        await verify(token)
    server.publish(keys.current, keys.next)

    clock.move(60)
    identity = await verify(token)

    assert identity.account


async def test_keys_that_cannot_serve_are_passed_over(make_verifier, tokens, keys, server):
    verifier = make_verifier()
    entries = {k.key_id: k.certificate() for k in (keys.current, keys.curve, keys.weak)}
    server.answer_with(json.dumps(entries | {"odd": 1, "broken": "-----BEGIN CERTIFICATE-----"}))

    identity = await verifier.verify([f"Bearer {tokens.mint()}"])
    with pytest.raises(Unauthenticated) as refusal:
        await verifier.verify([f"Bearer {tokens.mint(key=keys.weak)}"])

    assert identity.account
    assert refusal.value.cause == "unknown-key"


async def test_close_ends_a_fetch_that_is_under_way(verifier, tokens, server):
    server.answering.clear()
    request = asyncio.create_task(verifier.verify([f"Bearer {tokens.mint()}"]))
    await asyncio.sleep(0)

    async with asyncio.timeout(1):
        await verifier.close()

    with pytest.raises(IdentityUnavailable):
        await request


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"cache-control": "public, max-age=21155, must-revalidate, no-transform"}, 21_155),
        ({"cache-control": "public, max-age=21155, must-revalidate", "age": "155"}, 21_000),
        ({"cache-control": 'Max-Age="600"'}, 600),
        ({"cache-control": "s-maxage=900, max-age=600"}, 600),
        ({"cache-control": "max-age=600", "age": "soon"}, 600),
        ({"cache-control": "max-age=600", "age": "-9"}, 600),
        ({"cache-control": "max-age=600", "age": "600"}, 60),
        ({"cache-control": "max-age=0"}, 60),
        ({"cache-control": "max-age=9999999999"}, 86_400),
        ({"cache-control": "no-store"}, 300),
        ({"cache-control": "max-age=soon"}, 300),
        ({}, 300),
    ],
)
def test_freshness_is_max_age_less_age_within_bounds(headers, seconds):
    assert fresh_seconds(httpx.Headers(headers)) == seconds


def _with_key_id(token: str, key_id: str) -> str:
    _, payload, signature = token.split(".")
    header = json.dumps({"alg": "RS256", "kid": key_id, "typ": "JWT"}).encode()
    return f"{base64.urlsafe_b64encode(header).rstrip(b'=').decode()}.{payload}.{signature}"
