"""Digests of requests: the same for every spelling of a value, whichever way they are made."""

import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from app.domain.keys import KeyRing, canonical

NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(codec="ascii")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="ascii")), inner),
)


@given(PLAIN)
def test_plain_value_is_written_as_the_standard_has_it(value):
    """Most requests are plain, and take a way that is ten times as short."""
    assert canonical(value) == rfc8785.dumps(value)


@given(VALUES)
def test_any_value_is_written_as_the_standard_has_it(value):
    assert canonical(value) == rfc8785.dumps(value)


def test_order_of_names_and_spelling_change_no_digest():
    ring = KeyRing("k1", {"k1": b"a" * 32})

    assert ring.digest("x", {"b": 1, "a": [1.0]}) == ring.digest("x", {"a": [1], "b": 1.0})
    assert ring.digest("x", {}) != ring.digest("y", {})


def test_new_secret_under_an_old_key_gives_another_digest():
    """What is derived from a secret is kept with its ring alone."""
    assert KeyRing("k", {"k": b"a" * 32}).digest("x", 1) != KeyRing("k", {"k": b"b" * 32}).digest(
        "x", 1
    )
