"""The values that a sender names: each in every form, however the text is split."""

import random

import pytest

from app.domain.masking import MAX_EXACT_BYTES, MAX_EXACT_VALUES, MIN_EXACT_BYTES, Exact
from tests.masking import texts
from tests.masking.sender import assert_same_however_split, send, two_pieces

HORSE = "correct-horse-9"
BLOCK = (
    texts.private_key(random.Random(5), lines=3)
    .replace(b"RSA PRIVATE KEY", b"CUSTOM BLOCK")
    .decode()
)
LINES = BLOCK.split("\n")

TABLE = {
    "split in the middle": ([HORSE], f"login {HORSE} ok\n", "login *** ok\n"),
    "only its beginning, at the end": ([HORSE], "login corr", "login corr"),
    "after its own first letter": (["secrets"], "ssecrets", "s***"),
    "twice without a gap": (["secrets"], "secretssecrets", "***"),
    "one inside the other": (
        ["secret", "mysecret-token-xyz"],
        "mysecret-token-xyz was used",
        "*** was used",
    ),
    "one the beginning of the other": (
        ["hunter2", "hunter2-prod-9981"],
        "use hunter2-prod-9981 or hunter2",
        "use *** or ***",
    ),
    "overlapping": (
        ["ipsum dolor", "dolor sit"],
        "Lorem ipsum dolor sit amet",
        "Lorem *** amet",
    ),
    "letters of patterns": (["p.ss(w+)[rd$^"], "pass(w+)[rd$^ p.ss(w+)[rd$^", "pass(w+)[rd$^ ***"),
    "letters of replacements": ([r"a\1b\g<0>c"], r"x a\1b\g<0>c y", "x *** y"),
    "as JSON": (['Pass"word"123!'], r"123Pass\"word\"123!123", "123***123"),
    "two lines, and as JSON": (["secret\n1"], "secret\n1 secret\\n1 s", "*** *** s"),
    "as a URL": (["Pass word 123!"], "123Pass%20word%20123%21123", "123***123"),
    "as a form": (["Pass word 123!"], "123Pass+word+123%21123", "123***123"),
    "as a URL in small letters": (["Pass/word+123"], "1Pass%2fword%2b1231", "1***1"),
    "as HTML": (["Pass<word>123!"], "123Pass&lt;word&gt;123!123", "123***123"),
    "as base64 after one byte": (["Password123!"], "OlBhc3N3b3JkMTIzIQ==", "OlBh***"),
    "as base64 after two": (["Password123!"], "YTpQYXNzd29yZDEyMyE=", "YTpQ***"),
    "as base64 after three": (["Password123!"], "YWI6UGFzc3dvcmQxMjMh", "YWI6***"),
    "a block with other line ends": (
        [BLOCK + "\n"],
        "a\r\n" + BLOCK.replace("\n", "\r\n") + "\r\nb\r\n",
        "a\r\n***\r\nb\r\n",
    ),
    "a block on one line": ([BLOCK + "\n"], " ".join(LINES), "***"),
    "one line of a block": ([BLOCK + "\n"], LINES[2], "***"),
    "lines of brackets": (['{\n "id":7,\n "pw":"foobar99"\n}'], "if (x) { y }", "if (x) { y }"),
    "blank": (["", "   ", "\n\n"], "any text\n\n", "any text\n\n"),
    "too short": (["a", "dev"], "banana developer dev", "banana developer dev"),
    "beyond ASCII": (["töken-ß-42"], "v=töken-ß-42.", "v=***."),
    "progress bars": (
        [HORSE],
        f" 10%\r 20%\r tok={HORSE}\r100%\n",
        " 10%\r 20%\r tok=***\r100%\n",
    ),
    "coloured inside": ([HORSE], "a cor\x1b[31mrect-horse-9\x1b[0m b", "a ***\x1b[0m b"),
    "another case": (["Password123!"], "password123! Password123!", "password123! ***"),
    "inside a word": (["tok9zz"], 'xtok9zzx "tok9zz" tok9zz.', 'x***x "***" ***.'),
}


@pytest.mark.parametrize("name", TABLE)
def test_value_is_masked_however_the_text_is_split(masker, name):
    exact, text, expected = TABLE[name]
    values = [value.encode() for value in exact]

    assert masker.mask_bytes(text.encode(), values).data == expected.encode()
    assert_same_however_split(masker, text.encode(), values, expected.encode())


def test_value_named_later_is_masked_from_then_on(masker):
    first = masker.mask_bytes(
        b"redact secret1111 but don't redact secret2222 until", [b"secret1111"]
    )
    second = masker.mask_bytes(b" after secret2222 is added\n", [b"secret1111", b"secret2222"])

    assert first.data + second.data == (
        b"redact *** but don't redact secret2222 until after *** is added\n"
    )


def test_progress_is_stored_without_waiting_for_a_line_feed(masker):
    chunk = masker.mask_chunk(b" 10%\r 20%\r 30", final=False)

    assert chunk.accepted == len(b" 10%\r 20%\r")


def test_long_value_is_not_split_by_a_line_without_an_end(masker):
    value = b"v" * 8_000 + b"w" * 8_000
    data = b"x" * 70_000 + value + b"x" * 70_000

    for first in (65_536, 70_000, 78_000, 85_999, 86_001, 90_000):
        stored = send(masker, data, two_pieces(first), [value])
        assert stored == b"x" * 70_000 + b"***" + b"x" * 70_000


def test_value_at_the_end_of_ten_megabytes_without_a_line_is_masked(masker):
    data = b"x" * 10_000_000 + HORSE.encode()

    assert masker.mask_bytes(data, [HORSE.encode()]).data == b"x" * 10_000_000 + b"***"


def test_refused_values_are_named_by_their_place(masker):
    masked = masker.mask_bytes(
        b"text", [b"dev", b"long enough", b"  ab ", b"x" * (MAX_EXACT_BYTES + 1)]
    )

    assert masked.too_short == (0, 2)
    assert masked.counts.too_long == (3,)
    assert "2 too short" in masked.counts.warning
    assert "dev" not in masked.counts.warning
    assert masker.mask_bytes(b"text", [b"abcd"]).counts.warning == ""


def test_shortest_value_is_masked(masker):
    value = b"q7Rt"
    assert len(value) == MIN_EXACT_BYTES

    assert masker.mask_bytes(b"a q7Rt b", [value]).data == b"a *** b"


def test_two_senders_do_not_share_values(masker):
    assert masker.mask_bytes(b"one-value two-value", [b"one-value"]).data == b"*** two-value"
    assert masker.mask_bytes(b"one-value two-value", [b"two-value"]).data == b"one-value ***"


def test_values_are_not_shown_by_what_holds_them():
    assert "hunter2" not in repr(Exact([b"hunter2-value"]))


def test_many_values_are_looked_for_at_once(masker):
    values = [f"value-{number}-of-many".encode() for number in range(MAX_EXACT_VALUES + 1)]
    data = b" ".join(values[:-1]) * 40

    masked = masker.mask_bytes(data, values)

    assert b"of-many" not in masked.data
    assert masked.counts.too_long == (MAX_EXACT_VALUES,)


def test_many_long_values_are_looked_for_in_a_large_text(masker):
    values = [f"{number:04}-{'long' * number}".encode() for number in range(150)]
    data = texts.ordinary(200_000) + b" ".join(values)

    assert b"-long" not in masker.mask_bytes(data, values).data


def test_touching_values_of_several_lines_stay_one_mask(masker):
    value = b"hunter2\nsecond-line"

    assert_same_however_split(masker, b"a " + value * 2 + b" b\n", [value], b"a *** b\n")


def test_values_that_are_no_text_are_masked(masker):
    value = bytes(range(0xF0, 0x100)) + b"\x00\xff"

    assert masker.mask_bytes(b"a" + value + b"b", [value]).data == b"a***b"
