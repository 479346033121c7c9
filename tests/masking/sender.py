"""A sender that does what the answers of the log endpoint tell it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from app.domain.masking import PROGRESS_BYTES, Masker


def send(masker: Masker, data: bytes, sizes: Iterator[int], exact: Sequence[bytes] = ()) -> bytes:
    """What is stored of a stream whose sender has so many more bytes at each turn.

    It begins where it was told to go on, and repeats what was not accepted.
    """
    stored, at, end = b"", 0, 0
    while True:
        end = min(len(data), max(end, at) + next(sizes))
        final = end == len(data)
        chunk = masker.mask_chunk(data[at:end], exact, final=final)
        assert chunk.accepted or (not final and end - at < PROGRESS_BYTES) or at == end
        stored += chunk.masked.data
        at += chunk.accepted
        if final:
            assert at == len(data)
            return stored


def two_pieces(first: int) -> Iterator[int]:
    return itertools.chain([first], itertools.repeat(1 << 30))


def byte_by_byte() -> Iterator[int]:
    return itertools.repeat(1)


def random_pieces(seed: int, most: int) -> Iterator[int]:
    chance = random.Random(seed)
    return iter(lambda: chance.randrange(1, most), 0)


def assert_same_however_split(
    masker: Masker, data: bytes, exact: Sequence[bytes] = (), expected: bytes | None = None
) -> None:
    """The stored text is that of the whole, wherever the text is split, and byte by byte."""
    whole = masker.mask_bytes(data, exact).data if expected is None else expected
    for place in range(len(data) + 1):
        assert send(masker, data, two_pieces(place), exact) == whole, place
    assert send(masker, data, byte_by_byte(), exact) == whole
