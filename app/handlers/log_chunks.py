"""A chunk of a log as it is stored: masked, counted and digested, off the event loop if large."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from app.domain.keys import KeyRing
from app.domain.masking import Counts, Exact, Masker

PURPOSE = "log.append"
_IN_A_THREAD_FROM = 64 * 1024
_MANY_BYTES_TO_MASK = 256  # every value has dozens of forms, and making them takes its time


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    """As many maskings at once as there are cores: more would only wait for each other."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="masking")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The part of a chunk that may be stored: `accepted` raw bytes of it, and their masked form."""

    accepted: int
    raw_hmac: str
    data: bytes
    sha256: bytes
    line_count: int
    counts: Counts

    @property
    def sha256_base64(self) -> str:
        """As the object store wants it."""
        return base64.b64encode(self.sha256).decode()

    @property
    def told(self) -> Mapping[str, int]:
        """What the timeline is told: what was masked, and which values could not be looked for."""
        refused = {
            "refused_too_short": len(self.counts.too_short),
            "refused_too_long": len(self.counts.too_long),
        }
        return {**self.counts.kinds, **{word: count for word, count in refused.items() if count}}


async def prepare(
    masker: Masker, keys: KeyRing, data: bytes, values: list[bytes], *, final: bool
) -> Prepared:
    """Mask a chunk up to its last safe cut. Nothing of the raw bytes is in what is returned."""
    if len(data) <= _IN_A_THREAD_FROM and sum(map(len, values)) <= _MANY_BYTES_TO_MASK:
        return _prepare(masker, keys, data, values, final=final)
    return await asyncio.get_running_loop().run_in_executor(
        _threads(), lambda: _prepare(masker, keys, data, values, final=final)
    )


def _prepare(
    masker: Masker, keys: KeyRing, data: bytes, values: list[bytes], *, final: bool
) -> Prepared:
    chunk = masker.mask_chunk(data, Exact(values), final=final)
    masked = chunk.masked.data if chunk.accepted else b""
    return Prepared(
        accepted=chunk.accepted,
        raw_hmac=keys.mac_text(PURPOSE, data[: chunk.accepted]),
        data=masked,
        sha256=hashlib.sha256(masked).digest(),
        line_count=masked.count(b"\n"),
        counts=chunk.masked.counts,
    )
