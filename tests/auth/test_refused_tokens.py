"""Every way in which a request fails to prove who sent it, with the cause that is noted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.auth.causes import FORBIDDEN_CAUSES, UNAUTHENTICATED_CAUSES
from app.domain.errors import Forbidden, ServiceError, Unauthenticated

ABSENT = ...  # leaves a claim or a header's member out
Build = Callable[[Any], str | list[str]]


def b64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def with_header(**members: Any) -> Build:
    return lambda w: w.tokens.mint(header=members)


def with_claims(**claims: Any) -> Build:
    return lambda w: w.tokens.mint(**claims)


def with_times(*, iat: float, exp: float, **claims: float) -> Build:
    """`iat`, `exp` (and `nbf`) in seconds from now."""

    def build(w: Any) -> str:
        now = int(w.clock.wall())
        times = {name: now + value for name, value in {"iat": iat, "exp": exp, **claims}.items()}
        return w.tokens.mint(**times)

    return build


def with_payload(text: str) -> Build:
    return lambda w: w.tokens.sign(text)


def with_raw_header(text: str) -> Build:
    def build(w: Any) -> str:
        _, payload, signature = w.tokens.mint().split(".")
        return f"{b64url(text.encode())}.{payload}.{signature}"

    return build


def with_segments(change: Callable[[Any], str]) -> Build:
    """Change a good token, given as its segments `h`, `p` and `s`."""
    return lambda w: change(
        SimpleNamespace(**dict(zip("hps", w.tokens.mint().split("."), strict=True)))
    )


def exactly(*values: str) -> Build:
    return lambda _w: list(values)


def signed_with_the_public_certificate_as_secret(w: Any) -> str:
    head = b64url(json.dumps({"alg": "HS256", "kid": w.keys.current.key_id}).encode())
    signed = f"{head}.{b64url(json.dumps(w.tokens.claims()).encode())}"
    mac = hmac.new(w.keys.current.certificate().encode(), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{b64url(mac)}"


def with_other_claims_under_a_good_signature(w: Any) -> str:
    head, _, signature = w.tokens.mint().split(".")
    claims = w.tokens.claims(email="somebody@else.iam.gserviceaccount.com")
    return f"{head}.{b64url(json.dumps(claims).encode())}.{signature}"


def with_loose_bits_at_the_end(w: Any) -> str:
    """The same bytes, spelled with another last character: a 256-byte signature leaves four."""
    token = w.tokens.mint()
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + alphabet[alphabet.index(token[-1]) + 1]


NO_TOKEN: dict[str, Build] = {
    "there is no header": exactly(),
    "the header is empty": exactly(""),
    "the scheme is another": exactly("Basic dXNlcjpwYXNzd29yZA=="),
    "the scheme is missing": lambda w: [w.tokens.mint()],
    "the bearer is empty": exactly("Bearer "),
    "only the scheme is there": exactly("Bearer"),
}

BAD_TOKEN: dict[str, dict[str, Build]] = {
    "two-headers": {
        "two tokens": lambda w: [f"Bearer {w.tokens.mint()}", f"Bearer {w.tokens.mint(sub='2')}"],
        "the same token twice": lambda w: [f"Bearer {w.tokens.mint()}"] * 2,
        "a good one behind another scheme": lambda w: ["Basic eDp5", f"Bearer {w.tokens.mint()}"],
    },
    "malformed": {
        "two segments": with_segments(lambda t: f"{t.h}.{t.p}"),
        "four segments": with_segments(lambda t: f"{t.h}.{t.p}.{t.s}.{t.s}"),
        "five segments, as encrypted tokens": with_segments(
            lambda t: f"{t.h}.{t.p}.{t.s}.{t.h}.{t.p}"
        ),
        "an empty segment": with_segments(lambda t: f"{t.h}..{t.s}"),
        "an empty signature": with_segments(lambda t: f"{t.h}.{t.p}."),
        "padding": with_segments(lambda t: f"{t.h}.{t.p}.{t.s}=="),
        "much padding": with_segments(lambda t: f"{t.h}.{t.p}.{t.s}===="),
        "foreign characters": with_segments(lambda t: f"{t.h}.{t.p}.{t.s[:8]}!!!!{t.s[8:]}"),
        "the other alphabet": with_segments(lambda t: f"{t.h}.{t.p}.{t.s[:-4]}+/+A"),
        "characters that are not ASCII": with_segments(lambda t: f"{t.h}.{t.p}.{t.s[:-1]}é"),
        "characters that cannot be encoded": with_segments(
            lambda t: f"{t.h}.{t.p}.{t.s[:-1]}\udce9"
        ),
        "a line break": with_segments(lambda t: f"{t.h}.{t.p}.{t.s}\n"),
        "an impossible length": with_segments(lambda t: f"{t.h}.{t.p}.{t.s[:-1]}"),
        "loose bits at the end": with_loose_bits_at_the_end,
        "two tokens in one header": with_segments(
            lambda t: f"{t.h}.{t.p}.{t.s}, Bearer {t.h}.{t.p}.{t.s}"
        ),
        "100 kB": exactly("Bearer " + "a" * 50_000 + ".b." + "c" * 50_000),
        "a token just over 8 KiB": lambda w: w.tokens.mint(filler="x" * 6_000),
        "a header over 1 KiB": with_header(filler="x" * 800),
        "a header that is no JSON": with_raw_header("alg=RS256"),
        "a header that is a list": with_raw_header('["RS256"]'),
        "a header that is not UTF-8": with_segments(lambda t: f"_____w.{t.p}.{t.s}"),
        "a header as deep as fits": with_raw_header("[" * 760),
        "a header deeper than that": with_raw_header("[" * 2_400),
        "claims 5,000 levels deep": with_payload('{"a":' + "[" * 5_000),
        "claims that are a list": with_payload("[]"),
        "claims that are no JSON": with_payload("sub=1"),
        "a number too long to read": with_payload('{"exp":' + "9" * 5_000 + "}"),
        "critical extensions": with_header(crit=["exp"], exp=1),
        "an empty list of critical extensions": with_header(crit=[]),
        "no exp": with_claims(exp=ABSENT),
        "no iat": with_claims(iat=ABSENT),
        "exp null": with_claims(exp=None),
        "exp a text": with_claims(exp="1800003600"),
        "exp not a number": with_claims(exp=float("nan")),
        "exp without end": with_claims(exp=float("inf")),
        "exp a fraction": with_claims(exp=1_800_003_600.5),
        "exp true": with_claims(exp=True),
        "iat null": with_claims(iat=None),
        "iat a list": with_claims(iat=[1]),
        "nbf a text": with_claims(nbf="now"),
    },
    "signature-removed-by-platform": {
        "a stripped signature": with_segments(lambda t: f"{t.h}.{t.p}.SIGNATURE_REMOVED_BY_GOOGLE"),
    },
    "issuer": {
        "a longer name": with_claims(iss="https://accounts.google.com.evil.test"),
        "a trailing slash": with_claims(iss="https://accounts.google.com/"),
        "other case": with_claims(iss="https://Accounts.google.com"),
        "another Google issuer": with_claims(iss="https://securetoken.google.com/project"),
        "the issuer of a front door": with_claims(iss="https://cloud.google.com/iap"),
        "no issuer": with_claims(iss=ABSENT),
        "a list": with_claims(iss=["https://accounts.google.com"]),
        "the name in our settings": with_claims(iss="google"),
    },
    "algorithm": {
        "none": with_header(alg="none"),
        "None": with_header(alg="None"),
        "rs256": with_header(alg="rs256"),
        "RS512": with_header(alg="RS512"),
        "PS256": with_header(alg="PS256"),
        "ES256, which this issuer does not use": with_header(alg="ES256"),
        "HS256 with our certificate as secret": signed_with_the_public_certificate_as_secret,
        "a list": with_header(alg=["RS256"]),
        "null": with_header(alg=None),
        "nothing": with_header(alg=ABSENT),
    },
    "key-id": {
        "nothing": with_header(kid=ABSENT),
        "empty": with_header(kid=""),
        "a list": lambda w: w.tokens.mint(header={"kid": [w.keys.current.key_id]}),
        "an object": with_header(kid={}),
        "a number": with_header(kid=1),
        "129 characters": with_header(kid="k" * 129),
    },
    "unknown-key": {
        "a key that nobody published": lambda w: w.tokens.mint(key=w.keys.strange),
        "an invented key id": with_header(kid="k" * 128),
    },
    "signature": {
        "another key under a known id": lambda w: w.tokens.mint(
            key=w.keys.strange, header={"kid": w.keys.current.key_id}
        ),
        "other claims": with_other_claims_under_a_good_signature,
        "one changed bit": with_segments(
            lambda t: f"{t.h}.{t.p}.{'B' if t.s[0] == 'A' else 'A'}{t.s[1:]}"
        ),
        "half of it": with_segments(lambda t: f"{t.h}.{t.p}.{t.s[: len(t.s) // 8 * 4]}"),
    },
    "expired": {
        "30 s ago": with_times(iat=-3_630, exp=-30),
        "120 s ago": with_times(iat=-3_720, exp=-120),
    },
    "not-yet-valid": {
        "iat 31 s ahead": with_times(iat=31, exp=3_600),
        "iat 120 s ahead": with_times(iat=120, exp=3_720),
        "nbf 31 s ahead": with_times(iat=0, exp=3_600, nbf=31),
    },
    "lifetime": {
        "one second over an hour": with_times(iat=0, exp=3_601),
        "a hundred years": with_times(iat=0, exp=3_153_600_000),
        "a number of a thousand digits": with_claims(exp=10**1_000),
        "none at all": with_times(iat=0, exp=0),
        "backwards": with_times(iat=20, exp=10),
    },
    "audience": {
        "another service": with_claims(aud="https://other.example.test/push"),
        "nothing": with_claims(aud=ABSENT),
        "null": with_claims(aud=None),
        "empty": with_claims(aud=""),
        "a list with ours": with_claims(aud=["https://executions.example.test/push"]),
        "an object": with_claims(aud={"https://executions.example.test/push": 1}),
        "other case": with_claims(aud="https://EXECUTIONS.example.test/push"),
        "a trailing slash": with_claims(aud="https://executions.example.test/push/"),
        "a query": with_claims(aud="https://executions.example.test/push?x=1"),
    },
    "no-account": {
        "neither e-mail nor subject": with_claims(email=ABSENT, sub=ABSENT),
        "e-mail null": with_claims(email=None),
        "e-mail empty": with_claims(email=""),
        "e-mail a list": with_claims(email=["push@project.iam.gserviceaccount.com"]),
        "subject a number": with_claims(email=ABSENT, sub=1),
    },
}

WRONG_ACCOUNT: dict[str, dict[str, Build]] = {
    "account": {
        "another service account": with_claims(email="push@other.iam.gserviceaccount.com"),
        "other case": with_claims(email="Push@project.iam.gserviceaccount.com"),
        "a longer name": with_claims(email="push@project.iam.gserviceaccount.com.evil.test"),
        "a person": with_claims(email="someone@example.test", hd="example.test"),
        "no e-mail, and a subject without a grant": with_claims(email=ABSENT),
    },
    "email-not-verified": {
        "false": with_claims(email_verified=False),
        "a text": with_claims(email_verified="true"),
        "one": with_claims(email_verified=1),
        "missing": with_claims(email_verified=ABSENT),
    },
}


def cases(table: dict[str, dict[str, Build]]) -> list[Any]:
    return [
        pytest.param(cause, build, id=f"{cause}: {what}")
        for cause, builds in table.items()
        for what, build in builds.items()
    ]


BEFORE_KEYS = (
    "two-headers",
    "malformed",
    "signature-removed-by-platform",
    "issuer",
    "algorithm",
    "key-id",
)


@pytest.fixture
def world(clock, tokens, keys) -> SimpleNamespace:
    return SimpleNamespace(clock=clock, tokens=tokens, keys=keys)


def values(sent: str | list[str]) -> list[str]:
    return sent if isinstance(sent, list) else [f"Bearer {sent}"]


@pytest.mark.parametrize("build", NO_TOKEN.values(), ids=NO_TOKEN)
async def test_request_without_a_bearer_token_is_told_that_one_is_required(verifier, world, build):
    sent = build(world)

    with pytest.raises(Unauthenticated) as refusal:
        await verifier.verify(sent)

    assert refusal.value.cause == "no-token"
    assert refusal.value.token_sent is False


@pytest.mark.parametrize(("cause", "build"), cases(BAD_TOKEN))
async def test_bad_token_is_refused_and_its_cause_noted(verifier, world, cause, build):
    sent = values(build(world))

    with pytest.raises(Unauthenticated) as refusal:
        await verifier.verify(sent)

    assert refusal.value.cause == cause
    assert refusal.value.token_sent is True
    assert_carries_nothing_of(refusal.value, sent)


@pytest.mark.parametrize(("cause", "build"), cases(WRONG_ACCOUNT))
async def test_good_token_of_an_account_without_a_grant_is_forbidden(verifier, world, cause, build):
    sent = values(build(world))

    with pytest.raises(Forbidden) as refusal:
        await verifier.verify(sent)

    assert refusal.value.context == {"cause": cause}
    assert_carries_nothing_of(refusal.value, sent)


@pytest.mark.parametrize(("cause", "build"), cases({k: BAD_TOKEN[k] for k in BEFORE_KEYS}))
async def test_token_that_is_bad_by_itself_causes_no_fetch(verifier, world, server, cause, build):
    sent = values(build(world))

    with pytest.raises(Unauthenticated):
        await verifier.verify(sent)

    assert server.requests == 0


def test_every_cause_has_a_case():
    assert set(BAD_TOKEN) | {"no-token"} == UNAUTHENTICATED_CAUSES
    assert set(WRONG_ACCOUNT) | {"role"} == FORBIDDEN_CAUSES


def test_all_refused_callers_are_told_the_same():
    causes = sorted(UNAUTHENTICATED_CAUSES)

    told = {str(Unauthenticated(cause, token_sent=True)) for cause in causes}

    assert told == {Unauthenticated.sentence()}


def assert_carries_nothing_of(error: ServiceError, sent: list[str]) -> None:
    """Neither the token nor a library's words about it, however the error is printed."""
    assert error.__cause__ is None
    assert error.__context__ is None
    assert str(error) == error.sentence()
    shown = f"{error!r} {error.detail} {error.context}"
    assert not any(part in shown for value in sent for part in value.split(".") if len(part) > 8)
