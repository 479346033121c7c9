"""Merges the small objects of logs that cannot grow any more.

A chatty job leaves thousands of objects of a few hundred bytes, which cost more to keep and to read
than what is in them. First the new object is stored, then the rows are swapped in one transaction,
and only after that the old objects may go: whenever this dies, every row has its object.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from functools import partial

import structlog

from app import failpoints
from app.domain.errors import DatabaseUnavailable, ObjectStoreUnavailable
from app.domain.ids import new_id
from app.handlers.log_views import terms_of
from app.loops.loop import Result
from app.objects.store import is_gone
from app.services import Services
from app.store import log_merges
from app.store.database import Connection
from app.store.log_merges import Chunk, Merged, Stream

SMALL_BYTES = 1024 * 1024
TARGET_BYTES = 8 * 1024 * 1024
_STREAMS = 20
_CHUNKS = 2000
_BYTES_A_PASS = 128 * 1024 * 1024
_LOG = structlog.get_logger(__name__)


class MergeLogs:
    """Puts small objects of one stream that follow each other into one of up to 8 MiB."""

    name = "merge_logs"
    interval_seconds = 30.0
    leader_only = True

    async def run_once(self, services: Services) -> Result:
        """Merge what is ready, up to a number of streams and of bytes."""
        terms = terms_of(services)
        ready = await services.database.run(
            lambda conn: log_merges.list_ready(conn, terms, _STREAMS)
        )
        merged = done = 0
        for stream in ready:
            if merged >= _BYTES_A_PASS:
                break
            merged += await _merge_stream(services, stream)
            done += 1
        return Result(done, more=done < len(ready) or done == _STREAMS)


async def _merge_stream(services: Services, stream: Stream) -> int:
    """All groups of one stream; how many bytes were merged."""
    after = merged = 0
    while True:
        chunks = await services.database.run(
            partial(log_merges.list_chunks, of=stream, after=after, limit=_CHUNKS)
        )
        for group in groups(chunks):
            merged += await _merge(services, stream, group)
        if len(chunks) < _CHUNKS:
            break
        after = chunks[-1].arrival_number
    await services.database.run(lambda conn: log_merges.mark_merged(conn, stream))
    return merged


def groups(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Small chunks that follow each other and together make at most one large object."""
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        fits = not chunk.bound and chunk.byte_size < SMALL_BYTES
        if group and (not fits or size + chunk.byte_size > TARGET_BYTES):
            if len(group) > 1:
                yield group
            group, size = [], 0
        if fits:
            group.append(chunk)
            size += chunk.byte_size
    if len(group) > 1:
        yield group


async def _merge(services: Services, stream: Stream, group: list[Chunk]) -> int:
    """One group; 0 if it must stay as it is."""
    body = await _verified(services, group)
    if body is None:
        _LOG.error("merge_logs.object_differs", attempt_id=str(stream.attempt_id))
        return 0
    sha256 = hashlib.sha256(body)
    # Of this try alone: what an earlier one left behind may be taken for an orphan at any moment.
    artifact_id = new_id()
    key = (
        f"logs/{stream.attempt_id}/{stream.lease_number}/{stream.stream}/"
        f"{group[0].stream_offset:020d}-{sha256.hexdigest()}-{artifact_id.hex}"
    )
    await services.objects.put(key, body, base64.b64encode(sha256.digest()).decode())
    if failpoints.ARMED:
        await failpoints.hit("merge.after_put")
    full_key, digest = services.objects.full_key(key), f"sha256:{sha256.hexdigest()}"
    merged = Merged(artifact_id, group, full_key, digest, len(body))
    moved = await services.database.run(lambda conn: _swap(conn, merged))
    return len(body) if moved else 0


async def _swap(conn: Connection, merged: Merged) -> int:
    moved = await log_merges.swap(conn, merged)
    if moved not in {0, len(merged.chunks)}:
        raise DatabaseUnavailable  # somebody else moved a part of it: nothing of this is kept
    return moved


async def _verified(services: Services, group: Sequence[Chunk]) -> bytes | None:
    """The bytes of all chunks; None if one of them is not what was recorded."""
    bodies = []
    for chunk in group:
        pieces = services.objects.read(chunk.object_key, 0, chunk.byte_size - 1)
        try:
            body = b"".join([piece async for piece in pieces])
        except ObjectStoreUnavailable as error:
            if not is_gone(error):
                raise
            return None
        if f"sha256:{hashlib.sha256(body).hexdigest()}" != chunk.digest:
            return None
        bodies.append(body)
    return b"".join(bodies)
