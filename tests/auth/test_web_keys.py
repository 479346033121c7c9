"""Issuers that publish a JSON Web Key Set, such as a Kubernetes cluster."""

from __future__ import annotations

import pytest

from app.domain.errors import IdentityUnavailable, Unauthenticated

ISSUER = "https://kubernetes.default.svc"
AUDIENCE = "execution-plane"
ACCOUNT = "system:serviceaccount:runners:ansible"


@pytest.fixture
def cluster(make_verifier, server):
    """Verify a service account's token as a cluster issues it: one audience, in a list."""
    return make_verifier(
        issuers={"cluster": {"issuers": (ISSUER,), "jwks_url": server.url}},
        grants=(
            {
                "role": "runner",
                "issuer": "cluster",
                "audiences": (AUDIENCE,),
                "accounts": (ACCOUNT,),
            },
        ),
    )


@pytest.fixture
def mint(tokens):
    def make(**changes):
        claims = {
            "iss": ISSUER,
            "aud": [AUDIENCE],
            "sub": ACCOUNT,
            "azp": ...,
            "email": ...,
            "email_verified": ...,
        }
        return f"Bearer {tokens.mint(**(claims | changes))}"

    return make


async def test_rsa_and_curve_keys_of_one_set_both_verify(cluster, server, mint, keys):
    server.publish_key_set(keys.current.web_key(), keys.curve.web_key())

    by_rsa = await cluster.verify([mint()])
    by_curve = await cluster.verify([mint(key=keys.curve)])

    assert by_rsa.account == by_curve.account == ACCOUNT
    assert by_rsa.roles == {"runner"}
    assert server.requests == 1


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE]])
async def test_the_audience_may_be_written_as_a_list_of_one(cluster, server, mint, keys, audience):
    server.publish_key_set(keys.current.web_key())

    identity = await cluster.verify([mint(aud=audience)])

    assert identity.account == ACCOUNT


@pytest.mark.parametrize(
    "audience", [[], [AUDIENCE, AUDIENCE], [AUDIENCE, "other"], [[AUDIENCE]], ["other"], [None]]
)
async def test_token_for_several_audiences_is_refused(cluster, server, mint, keys, audience):
    server.publish_key_set(keys.current.web_key())

    with pytest.raises(Unauthenticated) as refusal:
        await cluster.verify([mint(aud=audience)])

    assert refusal.value.cause == "audience"


@pytest.mark.parametrize("algorithm", ["none", "HS256", "RS512", "PS256", "ES384", "EdDSA"])
async def test_only_rs256_and_es256_are_known(cluster, server, mint, keys, algorithm):
    server.publish_key_set(keys.current.web_key())

    with pytest.raises(Unauthenticated) as refusal:
        await cluster.verify([mint(header={"alg": algorithm})])

    assert refusal.value.cause == "algorithm"


async def test_algorithm_must_be_that_of_the_key(cluster, server, mint, keys):
    server.publish_key_set(keys.current.web_key(), keys.curve.web_key())

    for signer, claimed in ((keys.current, "ES256"), (keys.curve, "RS256")):
        with pytest.raises(Unauthenticated) as refusal:
            await cluster.verify([mint(key=signer, header={"alg": claimed})])
        assert refusal.value.cause == "algorithm"


async def test_forged_signatures_are_refused(cluster, server, mint, keys):
    server.publish_key_set(keys.current.web_key(), keys.curve.web_key())
    by_stranger = mint(key=keys.strange, header={"kid": keys.current.key_id})
    head, payload, _ = mint(key=keys.curve).split(".")
    all_zero = f"{head}.{payload}.{'A' * 86}"

    for forged in (by_stranger, all_zero):
        with pytest.raises(Unauthenticated) as refusal:
            await cluster.verify([forged])
        assert refusal.value.cause == "signature"


async def test_unencoded_payload_option_is_refused(cluster, server, mint, keys):
    server.publish_key_set(keys.current.web_key())

    with pytest.raises(Unauthenticated) as refusal:
        await cluster.verify([mint(header={"b64": False})])

    assert refusal.value.cause == "signature"


async def test_unusable_members_of_a_set_are_passed_over(cluster, server, mint, keys):
    server.publish_key_set(
        keys.weak.web_key(),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AA", "kid": "ed"},
        {"kty": "RSA", "kid": "half"},
        "no key at all",
        keys.current.web_key(),
    )

    identity = await cluster.verify([mint()])
    with pytest.raises(Unauthenticated) as refusal:
        await cluster.verify([mint(key=keys.weak)])

    assert identity.account == ACCOUNT
    assert refusal.value.cause == "unknown-key"


@pytest.mark.parametrize(
    "changes",
    [
        {"use": "enc"},
        {"alg": "RS512"},
        {"key_ops": ["encrypt"]},
        {"kid": 1},
        {"kty": "EC"},
        {"n": "AQAB"},
    ],
)
async def test_key_for_another_purpose_does_not_verify(cluster, server, mint, keys, changes):
    server.publish_key_set(keys.current.web_key(**changes))

    with pytest.raises(IdentityUnavailable):
        await cluster.verify([mint()])


async def test_set_of_another_form_never_replaces_good_keys(cluster, server, mint, keys, clock):
    server.publish_key_set(keys.current.web_key())
    await cluster.verify([mint()])

    for document in ("{}", '{"keys": {}}', '{"keys": []}', '{"keys": [null]}', "[]", "null"):
        server.answer_with(document)
        clock.move(3_600)
        identity = await cluster.verify([mint()])
        await server.idle()
        assert identity.account == ACCOUNT
    assert server.requests == 7
