"""Bodies that come compressed: unpacked within bounds, whatever they claim to be.

A megabyte of gzip can stand for a gigabyte, and 33 KB of zstd as well, so what comes out is bounded
and not only what goes in. One gzip member or one zstd frame is one body: anything behind it, and a
body that ends too soon, is refused, for a part of a log must never be taken for the whole.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from app.api.bodies import read_bytes
from app.domain.errors import ContentEncodingUnsupported, LogChunkTooLarge, RequestInvalid

_IN_A_THREAD_FROM = 2 * 1024
_OVERHEAD = 64 * 1024
_GZIP = 31
_WINDOW_LOG = 23  # 8 MiB, what RFC 9659 asks of every decoder
_MAX_NAME = 20


async def read_decoded(request: Request, limit: int) -> bytes:
    """The whole body without its content encoding (identity, gzip, zstd), at most `limit` bytes.

    Raises LogChunkTooLarge, RequestInvalid or ContentEncodingUnsupported.
    """
    encoding = request.headers.get("content-encoding", "identity")[:_MAX_NAME].strip().lower()
    if encoding == "identity":
        return await read_bytes(request, limit, LogChunkTooLarge)
    decode = _DECODERS.get(encoding)
    if decode is None:
        raise ContentEncodingUnsupported
    packed = await read_bytes(request, limit + _OVERHEAD, LogChunkTooLarge)
    if len(packed) < _IN_A_THREAD_FROM:
        return _decoded(decode, encoding, packed, limit)
    return await asyncio.to_thread(_decoded, decode, encoding, packed, limit)


def _decoded(
    decode: Callable[[bytes, int], tuple[bytes, Any]], encoding: str, packed: bytes, limit: int
) -> bytes:
    try:
        data, decoder = decode(packed, limit + 1)
    except Exception:  # noqa: BLE001 - each library has errors of its own, all mean the same
        raise _unreadable(encoding, "is not valid") from None
    if len(data) > limit:
        raise LogChunkTooLarge(limit_bytes=limit)
    if not decoder.eof:
        raise _unreadable(encoding, "ends too soon")
    if decoder.unused_data:
        raise _unreadable(encoding, "goes on behind its end")
    return data


def _unreadable(encoding: str, what: str) -> RequestInvalid:
    return RequestInvalid([{"pointer": "", "detail": f"the body {what} as {encoding}"}])


def _gzip(packed: bytes, most: int) -> tuple[bytes, Any]:
    decoder = zlib.decompressobj(_GZIP)
    return decoder.decompress(packed, most), decoder


def _zstd(packed: bytes, most: int) -> tuple[bytes, Any]:
    from backports import zstd  # noqa: PLC0415 - few senders use it

    decoder = zstd.ZstdDecompressor(
        options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
    )
    return decoder.decompress(packed, most), decoder


_DECODERS: dict[str, Callable[[bytes, int], tuple[bytes, Any]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
