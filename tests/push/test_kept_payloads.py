"""What a dead letter keeps of its message, and whether it can be sent again from that."""

import pytest

from app.domain import letters

CANARY = "hunter2-canary"


def nothing_secret(value):
    """A stand-in for the masking engine that finds no secret."""
    return value


def test_of_what_is_too_large_only_the_form_is_kept():
    kept = letters.keep({"note": "x" * letters.MAX_KEPT_BYTES}, nothing_secret)

    assert kept == letters.Kept('{"note":"text of 65536 characters"}', redrivable=False)


@pytest.mark.parametrize(
    ("data", "redrivable"),
    [
        ({"number": 1}, True),
        ({"number": 10**30, "half": 0.5, "text": "a\x00b\ud800"}, True),
        ({"lease_id": "x", "lease_token": CANARY}, False),
        ({"text": "x" * letters.MAX_KEPT_BYTES}, False),
    ],
)
def test_only_a_whole_message_of_bounded_size_without_a_proof_is_redrivable(data, redrivable):
    kept = letters.keep(data, nothing_secret)

    assert kept.redrivable is redrivable
    assert CANARY not in kept.payload
    assert len(kept.payload) <= letters.MAX_KEPT_BYTES


def test_what_was_masked_is_kept_and_not_redrivable():
    kept = letters.keep({"password": CANARY}, lambda _: {"password": "***"})

    assert kept == letters.Kept('{"password": "***"}', redrivable=False)


def test_command_under_a_lease_is_never_redrivable():
    assert not letters.keep({"number": 1}, nothing_secret, under_lease=True).redrivable
