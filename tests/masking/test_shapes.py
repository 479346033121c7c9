"""Every published form and every context: found plainly, escaped and encoded."""

import base64
import json
from urllib.parse import quote

import pytest

from app.domain.masking.contexts import CONTEXTS
from app.domain.masking.shapes import SHAPES
from tests.masking import texts
from tests.masking.sender import assert_same_however_split

SHAPE_IDS = [f"{shape.kind}-{shape.text}" for shape in SHAPES]
# Too few letters are known of these for a look into base64.
HIDDEN_BY_BASE64 = {
    *("sk-<A32>", "s.<A24>", "b.<A24>", "r8_<A37>", "pat<A14>.<H64>", "oy2<A43>", "hf_<L34>"),
    *("cio<A32>", "SK<H32>", "SG.<W22>.<W43>", "<H32>-us<D1>", "<D8>:AA<W33>", "<A3><D1>Q~<Q31>"),
    *(f"${number}$<E2+>$<E8><C1>" for number in "156y"),
    "eyJ<W16+>.<W20+>.<W12+>.<W12+>.<W16>",
}


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_IDS)
def test_credential_is_masked_by_its_shape(masker, shape):
    masked = masker.mask_bytes(b"using " + shape.canary + b" now\n")

    assert masked.data == b"using *** now\n"
    assert masked.count == 1
    assert set(masked.kinds) <= {shape.kind, "ai_service"}


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_IDS)
def test_longer_credential_leaves_no_tail(masker, shape):
    longer = shape.canary + shape.canary[-1:] * 40

    assert masker.mask_bytes(b"x " + longer + b" y").data == b"x *** y"


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_IDS)
def test_credential_in_escaped_text_is_masked(masker, shape):
    text = shape.canary.decode()
    forms = [
        json.dumps(json.dumps({"note": text})),
        f"n=%22{quote(text, safe='')}%22",
        f"\\u0022{text}\\u0022",
        f"\x1b[32m{text[:3]}\x1b[1m{text[3:]}\x1b[0m",
        f"line\\n{text}",
    ]

    for form in forms:
        assert masker.mask_text(form)[1].count, form


@pytest.mark.parametrize(
    "shape",
    [shape for shape in SHAPES if shape.text not in HIDDEN_BY_BASE64],
    ids=lambda shape: shape.text,
)
@pytest.mark.parametrize("before", [b"", b":", b": "])
def test_credential_in_base64_is_masked(masker, shape, before):
    encoded = base64.b64encode(before + shape.canary + b"\n")

    assert masker.mask_bytes(b"value: " + encoded + b"\n").count == 1


@pytest.mark.parametrize("context", CONTEXTS, ids=lambda context: context.canary.decode())
def test_value_is_masked_by_its_context(masker, context):
    masked = masker.mask_bytes(b"run " + context.canary + b" now\n")

    assert masked.count == 1
    assert masked.data.startswith(b"run ")


@pytest.mark.parametrize("seed", range(5))
def test_samples_lose_their_secret_in_every_form(masker, seed):
    for text, secret in texts.samples(seed):
        plain = text.decode()
        forms = {
            "as it is": text,
            "JSON": json.dumps(plain).encode(),
            "JSON in JSON": json.dumps(json.dumps(plain)).encode(),
            "URL": quote(text, safe="").encode(),
            "URL, path": quote(text).encode(),
            "unicode": "".join(
                f"\\u{ord(c):04x}" if c in "\"'<>&=/:@" else c for c in plain.replace("\n", "\\n")
            ).encode(),
        }
        for name, form in forms.items():
            assert secret not in masker.mask_bytes(form).data, (name, form)


@pytest.mark.parametrize("seed", range(3))
def test_samples_in_base64_lose_their_secret(masker, seed):
    for text, secret in texts.samples(seed):
        for before in (b"", b"\n", b"\n\n"):
            whole = before + text
            for encoded in (
                base64.b64encode(whole),
                base64.urlsafe_b64encode(whole),
                base64.encodebytes(whole),
                b"    " + base64.encodebytes(whole).replace(b"\n", b"\r\n    "),
            ):
                masked = masker.mask_bytes(encoded)
                assert masked.count, (text, encoded)
                for piece in masked.data.replace(b"\n", b"").split(b"***"):
                    assert secret not in base64.b64decode(piece + b"==", altchars=b"-_")


def test_colour_inside_the_name_hides_nothing(masker):
    assert masker.mask_bytes(b"pass\x1b[31mword\x1b[0m=hunter22x").data.endswith(b"=***")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password=ab,cd9x", "password=***"),
        ("user=a,password=b9xy,host=c", "user=a,password=***,host=c"),
        ("?token=abcd1&next=/x", "?token=***&next=/x"),
        ("password='it is long 1'; next", "password='***'; next"),
        (r'password=\"a b c d\" x', r"password=\"***\" x"),
        ('{"password":"a\\"b c","x":1}', '{"password":"***","x":1}'),
        ('password="never closed', 'password="***'),
        ("https://u:p@ss1@host/x", "https://u:***@host/x"),
        ("https://abcdefghij0123456789@host/x", "https://***@host/x"),
        ("Proxy-Authorization: Digest username=a, response=b1", "Proxy-Authorization: Digest ***"),
        ("passwords: 12, password_file=/run/x", "passwords: 12, password_file=/run/x"),
        ("password: no-Xy72", "password: ***"),
        ("password=12+abc", "password=***"),
        ("bot https://api.telegram.org/bot123456789:AA" + "b1" * 17, "bot https://api.telegram.org/bot1***"),
    ],
)  # fmt: skip
def test_value_ends_where_it_ends(masker, text, expected):
    assert masker.mask_text(text)[0] == expected


def test_block_value_of_yaml_is_masked_line_by_line(masker):
    text = b"  password: |\n    hunter22\n\n    more here\n  user: app\n"

    masked = b"  password: |\n    ***\n\n    ***\n  user: app\n"

    assert masker.mask_bytes(text).data == masked
    assert_same_however_split(masker, text, expected=masked)
