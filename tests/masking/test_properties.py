"""For any text: no planted secret survives, nothing else changes, twice is as once."""

import json
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.domain.masking import Masker
from app.domain.masking.shapes import SHAPES
from tests.masking import texts
from tests.masking.sender import random_pieces, send

MASKER = Masker()
RELAXED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)

ORDINARY = st.sampled_from(texts.ORDINARY.splitlines()).map(str.encode)
NOISE = st.binary(max_size=60).filter(lambda noise: b"\x1b" not in noise)
PLANTED = st.sampled_from(
    [pair for seed in range(4) for pair in texts.samples(seed)]
    + [(b"x " + shape.canary, shape.canary) for shape in SHAPES]
)
FRAGMENT = st.sampled_from([*texts.REPEATED, b"\n", b" ", b"x1Y2", b'"', b"'", b"\\", b"=", b"***"])


@RELAXED
@given(st.lists(st.one_of(ORDINARY, NOISE), max_size=6), PLANTED, st.integers(0, 6))
def test_planted_secret_does_not_survive(lines, planted, place):
    text, secret = planted
    lines.insert(min(place, len(lines)), text)

    assert secret not in MASKER.mask_bytes(b"\n".join(lines)).data


@RELAXED
@given(st.lists(ORDINARY, max_size=12))
def test_text_without_secrets_is_unchanged(lines):
    text = b"\n".join(lines)

    assert MASKER.mask_bytes(text).data == text


@RELAXED
@given(st.lists(st.one_of(ORDINARY, NOISE, PLANTED.map(lambda pair: pair[0])), max_size=6))
def test_masking_twice_is_masking_once(lines):
    once = MASKER.mask_bytes(b"\n".join(lines)).data

    assert MASKER.mask_bytes(once).data == once


@RELAXED
@given(
    st.lists(st.one_of(ORDINARY, PLANTED.map(lambda pair: pair[0]), NOISE), max_size=6),
    st.integers(0, 1000),
)
def test_stored_text_is_the_same_in_any_pieces(lines, seed):
    text = b"\n".join(lines)

    assert send(MASKER, text, random_pieces(seed, 80)) == MASKER.mask_bytes(text).data


@RELAXED
@given(st.lists(FRAGMENT, max_size=40), st.integers(0, 1000))
def test_fragments_are_the_same_in_any_pieces(fragments, seed):
    text = b"".join(fragments)

    assert send(MASKER, text, random_pieces(seed, 40)) == MASKER.mask_bytes(text).data


@RELAXED
@given(st.lists(st.binary(min_size=4, max_size=12), min_size=1, max_size=5), st.data())
def test_exact_values_do_not_survive(values, data):
    values = [value.strip() for value in values if len(value.strip()) >= 4]
    noise = st.binary(max_size=8)
    text = b"".join(data.draw(noise) + value for value in values)

    masked = MASKER.mask_bytes(text, values).data

    for value in values:
        assert value not in masked or value in b"***" or b"*" in value


@RELAXED
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_json_keeps_its_shape_and_loses_the_secret(value):
    secret = "Qx7" + "".join(random.Random(1).choices("abcdefghij", k=12))

    masked, counts = MASKER.mask_json({"other": value, "db_password": {"value": [secret]}})

    assert secret not in json.dumps(masked)
    assert counts.count >= 1
    assert masked["db_password"] == {"value": ["***"]}


@RELAXED
@given(st.text(max_size=200))
def test_text_comes_back_as_text(text):
    masked, counts = MASKER.mask_text(text)

    assert masked == text or counts.count
