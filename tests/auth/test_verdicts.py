"""Verdicts that were reached once and are relied on again."""

from __future__ import annotations

import pytest

from app.domain.errors import Forbidden, Unauthenticated


async def test_known_token_is_not_verified_again(verifier, verify, tokens):
    token = tokens.mint()

    first = await verify(token)
    second = await verify(token)

    assert second is first


async def test_other_spelling_of_a_known_token_is_not_known(verify, tokens):
    token = tokens.mint()
    await verify(token)

    with pytest.raises(Unauthenticated) as refusal:
        await verify(f"{token}==")

    assert refusal.value.cause == "malformed"


async def test_refusals_are_not_kept(verifier, verify, tokens, keys):
    token = tokens.mint()
    for bad in (token[:-8] + "AAAAAAAA", tokens.mint(aud="x"), tokens.mint(exp=1, iat=0)):
        with pytest.raises(Unauthenticated):
            await verify(bad)
    with pytest.raises(Forbidden):
        await verify(tokens.mint(email="another@example.test"))

    assert len(verifier._verdicts) == 0


async def test_number_of_verdicts_is_bounded_and_the_oldest_goes_first(verifier, verify, tokens):
    first = tokens.mint(jti="first")
    known = await verify(first)
    for n in range(1_024):
        await verify(tokens.mint(jti=n))

    again = await verify(first)

    assert len(verifier._verdicts) == 1_024
    assert again == known
    assert again is not known


async def test_verdict_ends_with_its_token(verify, tokens, clock):
    token = tokens.mint()
    known = await verify(token)

    clock.move(3_599)
    before = await verify(token)
    clock.move(1)
    after = await verify(token)

    assert before is known
    assert after == known
    assert after is not known


async def test_verdict_ends_when_the_issuers_keys_change(verify, tokens, keys, clock, server):
    token = tokens.mint()
    known = await verify(token)
    server.publish(keys.current, keys.next)
    clock.move(60)
    await verify(tokens.mint(key=keys.next))

    again = await verify(token)

    assert again == known
    assert again is not known


async def test_verdict_survives_a_fetch_that_brings_the_same_keys(
    verify, tokens, clock, server, keys
):
    server.publish(keys.current, cache_control="max-age=60")
    token = tokens.mint()
    known = await verify(token)
    clock.move(60)
    await verify(token)
    await server.idle()

    again = await verify(token)

    assert again is known
    assert server.requests == 2
