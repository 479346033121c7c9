import asyncio
import json
import time

import httpx
import jwt
import pytest
from google.auth import exceptions
from google.auth import jwt as google_jwt
from google.auth.transport.requests import Request
from google.oauth2 import id_token

from app.embedded.issuer import Fault, Issuer, issuer_app, new_key
from app.embedded.serving import LoopbackServer

ACCOUNT = "runner@dev.localhost"
AUDIENCE = "https://execution-plane.localhost"


@pytest.fixture(scope="module")
def keys_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("issuer")
    Issuer(folder)
    return folder


@pytest.fixture
def issuer(keys_folder, tmp_path):
    (tmp_path / "issuer-keys.pem").write_bytes((keys_folder / "issuer-keys.pem").read_bytes())
    return Issuer(tmp_path)


@pytest.fixture
async def server(issuer):
    server = LoopbackServer(issuer_app(issuer))
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server):
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        yield client


def verified(issuer, token):
    return google_jwt.decode(token, certs=issuer.certificates(), audience=AUDIENCE)


def test_token_has_exactly_the_claims_of_a_push_token(issuer):
    claims = verified(issuer, issuer.mint(ACCOUNT, AUDIENCE))

    assert set(claims) == {"aud", "azp", "email", "email_verified", "exp", "iat", "iss", "sub"}
    assert claims["email"] == ACCOUNT
    assert claims["email_verified"] is True
    assert claims["iss"] == "https://issuer.localhost"
    assert claims["exp"] - claims["iat"] == 3600
    assert claims["sub"] == claims["azp"]
    assert len(claims["sub"]) == 21
    assert claims["sub"].isdigit()


def test_token_header_names_a_published_key(issuer):
    header = jwt.get_unverified_header(issuer.mint(ACCOUNT, AUDIENCE))

    assert header == {"alg": "RS256", "kid": issuer.signing_key.kid, "typ": "JWT"}
    assert len(header["kid"]) == 40
    assert int(header["kid"], 16)


async def test_googles_own_library_accepts_the_token_over_http(issuer, server):
    certificates = f"{server.url}/oauth2/v1/certs"
    token = issuer.mint(ACCOUNT, AUDIENCE)

    claims = await asyncio.to_thread(
        id_token.verify_token, token, Request(), AUDIENCE, certificates
    )

    assert claims["email"] == ACCOUNT


async def test_key_set_verifies_the_token(issuer, client):
    keys = jwt.PyJWKSet.from_dict((await client.get("/oauth2/v3/certs")).json())
    token = issuer.mint(ACCOUNT, AUDIENCE)

    key = next(key for key in keys.keys if key.key_id == issuer.signing_key.kid)
    claims = jwt.decode(token, key, algorithms=["RS256"], audience=AUDIENCE)

    assert claims["email"] == ACCOUNT


def test_same_token_until_it_is_nearly_used_up(issuer):
    now = time.time()
    issuer._clock = lambda: now
    first = issuer.mint(ACCOUNT, AUDIENCE)

    now += 3600 - 301
    assert issuer.mint(ACCOUNT, AUDIENCE) == first

    now += 2
    assert issuer.mint(ACCOUNT, AUDIENCE) != first


def test_accounts_and_audiences_have_tokens_of_their_own(issuer):
    tokens = {issuer.mint(a, b) for a in ("a@dev", "b@dev") for b in ("https://a", "https://b")}

    assert len(tokens) == 4


def test_claims_can_be_replaced_and_left_out(issuer):
    token = issuer.mint(ACCOUNT, AUDIENCE, email_verified=False, azp=None)

    claims = verified(issuer, token)

    assert claims["email_verified"] is False
    assert "azp" not in claims


def test_rotation_signs_with_the_key_that_was_published_before(issuer):
    before = issuer.mint(ACCOUNT, AUDIENCE)
    published = set(issuer.certificates())

    issuer.rotate()
    after = issuer.mint(ACCOUNT, AUDIENCE)

    assert jwt.get_unverified_header(after)["kid"] in published
    assert jwt.get_unverified_header(after)["kid"] != jwt.get_unverified_header(before)["kid"]
    assert verified(issuer, before)
    assert verified(issuer, after)
    assert len(issuer.keys) == 3


def test_second_rotation_withdraws_the_first_key(issuer):
    before = issuer.mint(ACCOUNT, AUDIENCE)

    issuer.rotate()
    issuer.rotate()

    with pytest.raises(exceptions.MalformedError):
        verified(issuer, before)


def test_keys_outlive_the_process_whatever_their_number(issuer, tmp_path):
    for _ in range(2):
        again = Issuer(tmp_path)
        assert again.certificates() == issuer.certificates()
        assert again.signing_key.kid == issuer.signing_key.kid
        issuer.rotate()


def test_damaged_keys_are_replaced(tmp_path, issuer):
    (tmp_path / "issuer-keys.pem").write_text("-----BEGIN CERTIFICATE-----\n")

    assert len(Issuer(tmp_path).keys) == 2


def test_keys_are_closed_to_others(keys_folder):
    assert (keys_folder / "issuer-keys.pem").stat().st_mode & 0o777 == 0o600


def test_token_of_a_key_that_nobody_publishes_is_no_token(issuer):
    token = issuer.sign(issuer.claims(ACCOUNT, AUDIENCE), key=new_key())

    with pytest.raises(exceptions.MalformedError):
        verified(issuer, token)


async def test_certificates_come_with_googles_cache_headers(issuer, client):
    answer = await client.get("/oauth2/v1/certs")

    assert answer.json() == issuer.certificates()
    caching = "public, max-age=21600, must-revalidate, no-transform"
    assert answer.headers["cache-control"] == caching
    assert answer.headers["age"] == "12"
    assert issuer.requests["/oauth2/v1/certs"] == 1


async def test_token_over_http(issuer, client):
    wanted = {"account": ACCOUNT, "audience": AUDIENCE}

    answer = await client.post("/token", json=wanted)

    assert answer.json()["id_token"] == issuer.mint(ACCOUNT, AUDIENCE)
    assert answer.json()["expires_at"] == verified(issuer, answer.json()["id_token"])["exp"]
    assert answer.headers["cache-control"] == "no-store"


async def test_request_for_a_token_without_an_account_says_what_to_send(client):
    answer = await client.post("/token", json={"audience": AUDIENCE})

    assert answer.status_code == 400
    assert "account" in answer.json()["error"]


async def test_other_host_names_are_refused(client):
    answer = await client.get("/oauth2/v1/certs", headers={"host": "rebound.example.com"})

    assert answer.status_code == 400


async def test_faults_of_the_certificate_endpoint(issuer, client):
    issuer.fault = Fault.UNAVAILABLE
    assert (await client.get("/oauth2/v1/certs")).status_code == 503

    issuer.fault = Fault.HTML
    assert "<title>" in (await client.get("/oauth2/v1/certs")).text

    issuer.fault = Fault.EMPTY
    assert (await client.get("/oauth2/v1/certs")).json() == {}

    issuer.fault = Fault.TRUNCATED
    with pytest.raises(json.JSONDecodeError):
        (await client.get("/oauth2/v1/certs")).json()

    issuer.fault = Fault.SLOW
    with pytest.raises(httpx.ReadTimeout):
        await client.get("/oauth2/v1/certs", timeout=0.1)

    issuer.fault = None
    assert (await client.get("/oauth2/v1/certs")).json() == issuer.certificates()
