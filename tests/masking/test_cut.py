"""Where a stream may be cut: what is stored does not depend on how it was sent."""

import base64
import random

import pytest

from app.domain.masking import PROGRESS_BYTES
from tests.masking import texts
from tests.masking.sender import (
    assert_same_however_split,
    byte_by_byte,
    random_pieces,
    send,
    two_pieces,
)


def around(text, seed):
    chance = random.Random(seed)
    lines = texts.ORDINARY.encode().split(b"\n")
    return b"\n".join([*chance.sample(lines, 2), text, *chance.sample(lines, 2), b""])


SAMPLES = [sample for sample, _ in texts.samples(11)]


@pytest.mark.parametrize("text", SAMPLES, ids=lambda text: text[:30].decode())
def test_stored_text_is_the_same_wherever_it_is_split(masker, text):
    assert_same_however_split(masker, around(text, len(text)))


def key_layouts():
    key = texts.private_key(random.Random(3), lines=6)
    rows = key.split(b"\n")
    yield "plain", key
    yield "carriage returns", key.replace(b"\n", b"\r\n")
    yield "json", b'{"private_key":"' + key.replace(b"\n", b"\\n") + b'"}'
    yield "compose", b"\n".join(b"app_1  | " + row for row in rows)
    yield "timestamps", b"\n".join(b"2026-01-12T10:00:00Z " + row for row in rows)
    yield "diff", b"\n".join(b"+" + row for row in rows)
    yield "indented", b"\n".join(b"    " + row for row in rows)
    yield "no end", b"\n".join(rows[:-1]) + b"\nnext line of the log"
    yield "interleaved", b"\n".join(row + b"\nINFO something else" for row in rows)
    yield "base64", base64.encodebytes(key).strip()
    yield "base64 in yaml", b"  tls.key: " + base64.b64encode(key)


LAYOUTS = dict(key_layouts())


@pytest.mark.parametrize("name", LAYOUTS)
def test_private_key_is_never_split(masker, name):
    text = LAYOUTS[name]
    key_text = texts.private_key(random.Random(3), lines=6).split(b"\n")[3]
    data = b"before\n" + text + b"\nafter\n"

    whole = masker.mask_bytes(data).data

    assert whole.startswith(b"before\n")
    assert whole.endswith(b"\nafter\n")
    assert key_text not in whole
    assert base64.b64encode(key_text)[4:40] not in whole
    assert_same_however_split(masker, data)


def test_sentence_about_a_missing_key_swallows_nothing(masker):
    text = b"-----BEGIN PRIVATE KEY----- not found in app.key\nnext line\n"

    assert masker.mask_bytes(text).data == text
    assert send(masker, text, byte_by_byte()) == text


@pytest.mark.parametrize("most", [50, 5_000, 70_000, 300_000])
def test_long_log_is_the_same_in_random_pieces(masker, most):
    data = b"".join(
        texts.ordinary(60_000, seed) + b"\n".join(text for text, _ in texts.samples(seed))
        for seed in range(4)
    )

    whole = masker.mask_bytes(data).data

    for seed in range(3):
        assert send(masker, data, random_pieces(seed, most)) == whole


def test_lines_without_end_leak_nothing_and_always_go_on(masker):
    chance = random.Random(1)
    for seed in range(3):
        filler = texts.ordinary(40_000, seed).replace(b"\n", b" ")
        secrets = []
        data = b""
        for text, secret in texts.samples(seed):
            if b"\n" not in text:
                secrets.append(secret)
                data += filler[: chance.randrange(12_000)] + b" " + text + b" "
        for first in (65_536, 66_000, 80_001, 100_003):
            stored = send(masker, data, two_pieces(first))
            assert not [secret for secret in secrets if secret in stored]


@pytest.mark.parametrize("fragment", texts.REPEATED, ids=repr)
def test_every_64_kib_go_on_whatever_they_hold(masker, fragment):
    data = texts.repeated(fragment, PROGRESS_BYTES)

    assert 0 < masker.safe_cut(data, final=False) <= len(data)
    assert masker.safe_cut(data, final=True) == len(data)


def test_character_is_never_cut_apart(masker):
    for shift in range(4):
        data = b"x" * shift + "🔑".encode() * 30_000

        cut = masker.safe_cut(data, final=False)

        assert cut
        data[:cut].decode()


def test_little_without_a_line_end_asks_for_more(masker):
    assert masker.safe_cut(b"login corr", final=False) == 0
    assert masker.safe_cut(b"", final=False) == 0
    assert masker.safe_cut(b"", final=True) == 0
    assert masker.safe_cut(b"one line\ntwo", final=False) == len(b"one line\n")


def test_chunk_is_the_cut_and_its_mask(masker):
    data = around(b"DB_PASSWORD=hunter22x\nhalf a li", 4)[:-30]

    chunk = masker.mask_chunk(data, final=False)

    assert chunk.accepted == masker.safe_cut(data, final=False)
    assert chunk.masked == masker.mask_bytes(data[: chunk.accepted])


def test_marks_that_touch_stay_one_mask(masker):
    key = texts.private_key(random.Random(9), lines=3).split(b"\n")
    data = b"ghp_" + b"aB3" * 12 + b"\n".join(key[:-1]) + b"\nnext line\n"

    assert_same_however_split(masker, data, expected=b"***\n***\n***\n***\nnext line\n")
