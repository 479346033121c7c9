"""Compressed chunks: unpacked within bounds, or refused; never a part of one, never more."""

import gzip
import zlib

import pytest
from backports import zstd

TEXT = b"a line of a log, and another one\n" * 100
MIB = 1 << 20
LIMIT = 4 * MIB


def wide_window(data: bytes) -> bytes:
    """A frame that asks for a window of 128 MiB."""
    options = {
        zstd.CompressionParameter.window_log: 27,
        zstd.CompressionParameter.content_size_flag: 0,
    }
    packer = zstd.ZstdCompressor(options=options)
    return packer.compress(data) + packer.flush()


async def post(held, body: bytes, encoding: str, **headers: str):
    return await held.runner.call(
        "POST",
        f"/v1/leases/{held.id}/logs/stdout?offset=0",
        headers={"Lease-Token": held.token, "Content-Encoding": encoding, **headers},
        content=body,
    )


GOOD = {
    "gzip": ("gzip", gzip.compress(TEXT)),
    "gzip by its old name": ("x-gzip", gzip.compress(TEXT)),
    "gzip in capitals": ("GZIP", gzip.compress(TEXT)),
    "gzip, stored": ("gzip", gzip.compress(TEXT, 0)),
    "zstd": ("zstd", zstd.compress(TEXT)),
    "zstd, best": ("zstd", zstd.compress(TEXT, 19)),
    "identity": ("identity", TEXT),
}


@pytest.mark.parametrize("name", GOOD)
async def test_chunk_is_unpacked_before_it_is_counted_masked_and_stored(name, held, logs):
    encoding, body = GOOD[name]

    answer = await post(held, body, encoding)

    assert answer.json()["next_offset"] == len(TEXT), answer.text
    assert await logs.text(held) == TEXT


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_empty_chunk_may_be_compressed_too(encoding, held):
    pack = gzip.compress if encoding == "gzip" else zstd.compress

    assert (await post(held, pack(b""), encoding)).json()["next_offset"] == 0


GZIP, ZSTD = gzip.compress(TEXT), zstd.compress(TEXT)
BAD = {
    "gzip, empty": ("gzip", b""),
    "gzip, plain text": ("gzip", TEXT),
    "gzip without its last byte": ("gzip", GZIP[:-1]),
    "gzip without its trailer": ("gzip", GZIP[:-8]),
    "half of a gzip": ("gzip", GZIP[: len(GZIP) // 2]),
    "gzip with another check sum": ("gzip", GZIP[:-8] + bytes(4) + GZIP[-4:]),
    "gzip with another length": ("gzip", GZIP[:-4] + bytes(4)),
    "gzip with a broken middle": ("gzip", GZIP[:30] + b"\xff\xff\xff" + GZIP[33:]),
    "gzip and something behind it": ("gzip", GZIP + b"x"),
    "two gzip members": ("gzip", GZIP + GZIP),
    "zlib instead of gzip": ("gzip", zlib.compress(TEXT)),
    "zstd, empty": ("zstd", b""),
    "zstd, plain text": ("zstd", TEXT),
    "zstd without its last byte": ("zstd", ZSTD[:-1]),
    "zstd and something behind it": ("zstd", ZSTD + b"x"),
    "two zstd frames": ("zstd", ZSTD + ZSTD),
    "zstd with a window of 128 MiB": ("zstd", wide_window(TEXT)),
    "gzip called zstd": ("zstd", GZIP),
    "zstd called gzip": ("gzip", ZSTD),
}


@pytest.mark.parametrize("name", BAD)
async def test_body_that_is_not_one_whole_packed_text_is_refused(name, held, control):
    encoding, body = BAD[name]

    answer = await post(held, body, encoding)

    assert (answer.status_code, answer.json()["reason"]) == (422, "request-invalid"), answer.text
    assert await control.list_of(held.attempt_id, "logs") == []


BOMBS = {
    "a gigabyte of zeros as gzip": ("gzip", None),
    "a gigabyte of zeros as zstd": ("zstd", None),
    "one byte too many as gzip": ("gzip", gzip.compress(bytes(LIMIT + 1))),
    "one byte too many as zstd": ("zstd", zstd.compress(bytes(LIMIT + 1))),
    "one byte too many": ("identity", bytes(LIMIT + 1)),
}


def bomb(encoding: str) -> bytes:
    packer = (
        zlib.compressobj(9, zlib.DEFLATED, 31)
        if encoding == "gzip"
        else zstd.ZstdCompressor(level=1)
    )
    zeros = bytes(8 * MIB)
    return b"".join(packer.compress(zeros) for _ in range(128)) + packer.flush()


@pytest.mark.parametrize("name", BOMBS)
async def test_chunk_over_the_limit_is_refused_for_good_however_small_it_came(name, held, control):
    encoding, body = BOMBS[name]

    answer = await post(held, body or bomb(encoding), encoding)

    assert (answer.status_code, answer.json()["reason"]) == (413, "log-chunk-too-large")
    assert answer.json()["limit_bytes"] == LIMIT
    assert await control.list_of(held.attempt_id, "logs") == []


async def test_largest_chunk_may_be_packed(held):
    for encoding, pack in (("gzip", gzip.compress), ("zstd", zstd.compress)):
        answer = await post(held, pack(b"x" * (LIMIT - 1) + b"\n"), encoding)
        assert answer.json()["next_offset"] == LIMIT, answer.text


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "compress", "x" * 1000])
async def test_other_encodings_are_not_supported(encoding, held):
    answer = await post(held, TEXT, encoding)

    assert (answer.status_code, answer.json()["reason"]) == (415, "content-encoding-unsupported")


JSON = {"Content-Type": "application/json; charset=utf-8"}


async def test_json_may_be_packed_too(held, logs):
    body = b'{"offset": 0, "data_base64": "b25lCg=="}'
    answer = await held.runner.call(
        "POST",
        f"/v1/leases/{held.id}/logs/stdout",
        headers={"Lease-Token": held.token, "Content-Encoding": "gzip", **JSON},
        content=gzip.compress(body),
    )

    assert answer.json()["next_offset"] == 4, answer.text
    assert await logs.text(held) == b"one\n"


@pytest.mark.parametrize(
    ("query", "body", "pointer"),
    [
        ("", b'{"data_base64": "b25lCg=="}', "/offset"),
        ("", b'{"offset": 0}', "/data_base64"),
        ("", b'{"offset": 0, "data_base64": "b25lCg"}', "/data_base64"),
        ("", b'{"offset": -1, "data_base64": ""}', "/offset"),
        ("", b'{"offset": 0, "data_base64": "", "stream": "stderr"}', "/stream"),
        ("?offset=0", b'{"offset": 0, "data_base64": ""}', "/offset"),
        ("?final=true", b'{"offset": 0, "final": false, "data_base64": ""}', "/final"),
        ("", b"[]", ""),
    ],
)
async def test_bad_json_is_refused_with_a_pointer(query, body, pointer, held):
    answer = await held.runner.call(
        "POST",
        f"/v1/leases/{held.id}/logs/stdout{query}",
        headers={"Lease-Token": held.token, **JSON},
        content=body,
    )

    assert answer.status_code == 422, answer.text
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]


async def test_raw_bytes_need_an_offset(held):
    path = f"/v1/leases/{held.id}/logs/stdout"
    answer = await held.runner.call(
        "POST", path, headers={"Lease-Token": held.token}, content=b"x\n"
    )

    assert answer.json()["errors"] == [{"pointer": "/query/offset", "detail": "is required"}]
