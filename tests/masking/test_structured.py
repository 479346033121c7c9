"""JSON values: names give their values away; specifications are searched, not changed."""

import pytest

from tests.masking import texts

VALUE = texts.CANARY_VALUE


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"password": VALUE}, {"password": "***"}),
        ({"password": "short"}, {"password": "***"}),
        ({"password": {"value": VALUE}}, {"password": {"value": "***"}}),
        ({"credentials": [{"user": VALUE}]}, {"credentials": [{"user": VALUE}]}),
        ({"apiKey": 123456789}, {"apiKey": "***"}),
        ({"pin": 1, "token_type": "bearer", "tokens": 5}, None),
        ({"password": "", "secret": None, "token": True}, None),
        ({"password": "{{ vault_db }}", "token": "${TOKEN}"}, None),
        ({"secret_ref": "vault://kv/app#password"}, None),
        ({"password": {"secret_ref": "vault://kv/app#password"}}, None),
        ([{"name": "DB_PASSWORD", "value": VALUE}], [{"name": "DB_PASSWORD", "value": "***"}]),
        ([{"name": "PORT", "value": VALUE}], None),
        (
            {"kind": "Secret", "data": {"any": "cTctUnQyLnpLNA=="}, "type": "Opaque"},
            {"kind": "Secret", "data": {"any": "***"}, "type": "Opaque"},
        ),
        (
            {"auths": {"r.example": {"auth": "YXBwOnE3UnQyeks0"}}},
            {"auths": {"r.example": {"auth": "***"}}},
        ),
        ({"line": f"DB_PASSWORD={VALUE}"}, {"line": "DB_PASSWORD=***"}),
        ({"auth": {"mode": "basic"}, "author": "x"}, None),
    ],
)
def test_value_under_the_name_of_a_secret_is_masked(masker, value, expected):
    masked, counts = masker.mask_json(value)

    assert masked == (value if expected is None else expected)
    assert bool(counts.count) == (masked != value)


def test_names_are_masked_and_none_is_lost(masker):
    one, two = "ghp_" + "aB3" * 12, "ghp_" + "cD4" * 12

    masked, counts = masker.mask_json({one: 1, two: 2})

    assert masked == {"***": 1, "*** 2": 2}
    assert counts.kinds == {"github": 2}


def test_exact_values_are_masked_in_json(masker):
    masked, counts = masker.mask_json({"a": ["say opensesame"], "opensesame": 1}, [b"opensesame"])

    assert masked == {"a": ["say ***"], "***": 1}
    assert counts.count == 2


def test_original_is_not_changed(masker):
    value = {"password": [VALUE]}

    masker.mask_json(value)

    assert value == {"password": [VALUE]}


def test_specification_with_secrets_is_told_by_pointers(masker):
    spec = {
        "image": "registry.example.net/app:1.2.3",
        "env": [{"name": "DB_PASSWORD", "value": VALUE}, {"name": "MODE", "value": "prod"}],
        "database": {"url": f"postgres://app:{VALUE}@db/app"},
        "vars": {"a/b": {"token": VALUE}, "x~y": {"key": "ghp_" + "aB3" * 12}},
        "script": f"export API_TOKEN={VALUE}\nrun",
        "callback": {"client_secret": {"secret_ref": "vault://kv/app#secret"}},
    }

    assert masker.find_secrets_in_spec(spec) == [
        "/env/0/value",
        "/database/url",
        "/vars/a~1b/token",
        "/vars/x~0y/key",
        "/script",
    ]


def test_pointer_does_not_repeat_a_secret(masker):
    found = masker.find_secrets_in_spec({"ghp_" + "aB3" * 12: {"password": VALUE}})

    assert found == ["/***", "/***/password"]


@pytest.mark.parametrize(
    "spec",
    [
        {"path": "/etc/ssl/private/app.key", "key_file": "/run/secrets/key"},
        {"id": "018f3c2e-7b1a-7c3d-9e4f-112233445566"},
        {"image": "app@sha256:" + "9f86d081" * 8, "commit": "3b18e512" * 5},
        {"token": False, "password": None, "secret": True},
        {"token": "none", "password": "prompt", "secret": "default"},
        {"password": {"secret_ref": "vault://kv/app#password"}},
        {"secretRef": "db-credentials", "secret_name": "db", "existingSecret": "web-db-1"},
        {"password_file": "/run/secrets/db", "token_ttl": 3600, "max_tokens": 4096},
        {"page_token": "CAUQAA3x", "idempotency_key": "018f3c2e7b1a", "primary_key": "id1"},
        {"token": "${TOKEN}", "password": "{{ lookup('env', 'X') }}", "api_key": "$API_KEY"},
        {"digest": "sha256:" + "ab12" * 16, "checksum": "d41d8cd98f00b204e9800998ecf8427e"},
        {"public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ2Qd3sQm1m6nK9xTtq7uYw7"},
        {"command": "tool login --password-stdin < /run/x", "description": "rotates the token"},
        {"secret": "team-a/web-tls", "timeout": 30, "retries": "3"},
    ],
)  # fmt: skip
def test_specification_without_secrets_is_accepted(masker, spec):
    assert masker.find_secrets_in_spec(spec) == []
