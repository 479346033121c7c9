"""The tokens that must pass, among them those that libraries and other services stumble over."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from app.domain.errors import SettingsInvalid, Unauthenticated

AUDIENCE = "https://executions.example.test/push"
ACCOUNT = "push@project.iam.gserviceaccount.com"


async def test_genuine_token_proves_issuer_account_and_role(verify, tokens):
    identity = await verify(tokens.mint())

    assert identity.account == ACCOUNT
    assert identity.issuer == "google"
    assert identity.roles == {"pubsub"}
    assert [grant.audiences for grant in identity.grants] == [(AUDIENCE,)]


@pytest.mark.parametrize("spelling", ["accounts.google.com", "https://accounts.google.com"])
async def test_both_spellings_of_the_issuer_pass(verify, tokens, spelling):
    identity = await verify(tokens.mint(iss=spelling))

    assert identity.issuer == "google"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer   "])
async def test_scheme_is_read_without_case(verifier, tokens, scheme):
    identity = await verifier.verify([f"{scheme} {tokens.mint()}"])

    assert identity.account == ACCOUNT


@pytest.mark.parametrize("ahead", [1, 5, 10, 30])
async def test_issuer_whose_clock_is_up_to_30_seconds_ahead_is_believed(
    verify, tokens, clock, ahead
):
    now = int(clock.wall())

    identity = await verify(tokens.mint(iat=now + ahead, nbf=now + ahead, exp=now + 3_600))

    assert identity.account == ACCOUNT


@pytest.mark.parametrize("ago", [1, 5, 29])
async def test_token_that_expired_under_30_seconds_ago_passes(verify, tokens, clock, ago):
    now = int(clock.wall())

    identity = await verify(tokens.mint(iat=now - ago - 3_600, exp=now - ago))

    assert identity.account == ACCOUNT


async def test_one_token_serves_many_messages_for_its_whole_hour(verify, tokens, clock, server):
    token = tokens.mint()

    for _ in range(60):
        await verify(token)
        clock.move(60)
    await verify(token)
    clock.move(30)
    with pytest.raises(Unauthenticated) as refusal:
        await verify(token)

    assert refusal.value.cause == "expired"


async def test_unknown_claims_and_header_members_are_of_no_account(verify, tokens):
    token = tokens.mint(
        header={"x5t": "abc", "typ": ...}, at_hash="x", azp=["x"], hd="example.test"
    )

    identity = await verify(token)

    assert identity.account == ACCOUNT


async def test_subject_stands_for_the_account_where_there_is_no_email(make_verifier, tokens):
    grant = {"role": "runner", "issuer": "google", "audiences": (AUDIENCE,), "accounts": ("42",)}
    verifier = make_verifier(grants=(grant,))

    identity = await verifier.verify([f"Bearer {tokens.mint(email=..., sub='42')}"])

    assert identity.account == "42"


async def test_old_and_new_audience_are_accepted_during_a_move(make_verifier, tokens):
    grant = {
        "role": "pubsub",
        "issuer": "google",
        "audiences": ("https://old.example.test", "https://new.example.test"),
        "accounts": (ACCOUNT,),
    }
    verifier = make_verifier(grants=(grant,))

    for audience in grant["audiences"]:
        identity = await verifier.verify([f"Bearer {tokens.mint(aud=audience)}"])
        assert identity.account == ACCOUNT


async def test_only_the_grants_of_the_tokens_audience_count(make_verifier, tokens):
    pubsub = {
        "role": "pubsub",
        "issuer": "google",
        "audiences": (AUDIENCE,),
        "accounts": (ACCOUNT,),
    }
    operator = pubsub | {"role": "operator", "audiences": ("https://operators.example.test",)}
    control = pubsub | {"role": "control-plane"}
    verifier = make_verifier(grants=(pubsub, operator, control))

    here = await verifier.verify([f"Bearer {tokens.mint()}"])
    there = await verifier.verify([f"Bearer {tokens.mint(aud='https://operators.example.test')}"])

    assert here.roles == {"pubsub", "control-plane"}
    assert there.roles == {"operator"}


async def test_grant_of_one_issuer_is_worth_nothing_under_another(
    make_verifier, settings, tokens, server
):
    google = settings().model_dump()["issuers"]["google"]
    other = {"issuers": ("https://other.example.test",), "certificates_url": server.url}
    grant = {
        "role": "operator",
        "issuer": "other",
        "audiences": (AUDIENCE,),
        "accounts": (ACCOUNT,),
    }
    verifier = make_verifier(issuers={"google": google, "other": other}, grants=(grant,))

    with pytest.raises(Unauthenticated) as refusal:
        await verifier.verify([f"Bearer {tokens.mint()}"])

    assert refusal.value.cause == "audience"


@pytest.mark.parametrize("missing", ["audiences", "accounts"])
def test_grant_without_audience_or_account_does_not_start(settings, missing):
    grant = settings().model_dump()["grants"][0] | {missing: ()}

    with pytest.raises(ValidationError):
        settings(grants=(grant,))


def test_service_without_a_grant_does_not_start(settings):
    with pytest.raises(ValidationError):
        settings(grants=())


async def test_empty_audience_is_no_audience_even_if_configured(make_verifier, settings, tokens):
    grant = settings().model_dump()["grants"][0] | {"audiences": ("",)}

    with pytest.raises((Unauthenticated, ValidationError)):
        await make_verifier(grants=(grant,)).verify([f"Bearer {tokens.mint(aud='')}"])


def test_two_issuers_with_one_name_are_refused_at_the_start(make_verifier, settings):
    google = settings().model_dump()["issuers"]["google"]

    with pytest.raises(SettingsInvalid, match=r"two entries accept iss"):
        make_verifier(issuers={"google": google, "again": google})
