"""What `log.append` causes: upload, then record under the lease's fence; and reading back."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import BeforeValidator, Field

from app import failpoints
from app.commands.leases import key_of, refusal
from app.domain import commands
from app.domain.errors import (
    LeaseNotFound,
    LeaseTokenInvalid,
    LogChunkTooLarge,
    LogConflict,
    LogGap,
    LogLimitReached,
    LogStreamClosed,
)
from app.domain.ids import new_id
from app.handlers.counting import counted
from app.handlers.registry import Context, Registry
from app.services import Services
from app.store import diagnoses, logs, signals
from app.store.database import Connection
from app.store.leases import Key
from app.store.logs import Chunk, Part, Place

APPEND = "log.append"
_PURPOSE = "log.append"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stream stands after an append."""

    next_offset: int
    final: bool


async def append_log(services: Services, command: commands.AppendLog) -> Position:
    """Append a chunk once, however often it is sent. Answers where the sender goes on.

    Raises LogGap, LogConflict, LogStreamClosed, LogChunkTooLarge, LogLimitReached, or the fact
    that stands against the lease. Nothing is recorded that is not durable in the store before.
    """
    with counted(services.metrics, APPEND):
        limits = services.settings.limits
        if len(command.data) > limits.max_log_chunk_bytes:
            raise LogChunkTooLarge(limit_bytes=limits.max_log_chunk_bytes)
        place = await _look(services, command)
        if not _is_new(command, place):
            return await _answer_repeat(services, command, place)
        if place.attempt_bytes + len(command.data) > limits.max_log_bytes_per_attempt:
            raise LogLimitReached(limit_bytes=limits.max_log_bytes_per_attempt)
        if not command.data and not command.final:
            return Position(place.next_offset, place.final)
        if await _store(services, command, place):
            services.signals.wake(signals.attempt(place.attempt_id))
            return Position(command.offset + len(command.data), command.final)
        place = await _look(services, command)
        return await _answer_repeat(services, command, place)


async def _look(services: Services, command: commands.AppendLog) -> Place:
    key = key_of(command)
    place = await services.database.run(
        lambda conn: logs.look(conn, key, command.stream, _grace(services))
    )
    if place is None:
        raise LeaseNotFound
    if not place.token_fits:
        raise LeaseTokenInvalid
    if not place.writable:
        found = await services.database.run(lambda conn: diagnoses.diagnose(conn, [key.lease_id]))
        raise refusal(key, found.get(key.lease_id))
    return place


def _grace(services: Services) -> timedelta:
    return timedelta(seconds=services.settings.leases.log_grace_seconds)


def _is_new(command: commands.AppendLog, place: Place) -> bool:
    """Whether the chunk begins where the stream ends. A gap is refused here."""
    if command.offset > place.next_offset:
        raise LogGap(next_offset=place.next_offset)
    if command.offset == place.next_offset and place.final:
        if command.data:
            raise LogStreamClosed(next_offset=place.next_offset)
        return False
    return command.offset == place.next_offset


async def _answer_repeat(services: Services, command: commands.AppendLog, place: Place) -> Position:
    """A chunk that begins in what is stored stores nothing; it may only say the same again."""
    end = command.offset + len(command.data)
    covered = await services.database.run(
        lambda conn: logs.list_covered(
            conn, place.attempt_id, place.lease_number, command.stream, command.offset, end
        )
    )
    for ref, raw_hmac in covered:
        start = ref.stream_offset - command.offset
        same = command.data[start : start + ref.raw_size]
        if not services.keys.mac_matches(raw_hmac, _PURPOSE, same):
            raise LogConflict(stream_offset=ref.stream_offset, next_offset=place.next_offset)
    return Position(place.next_offset, place.final)


async def _store(services: Services, command: commands.AppendLog, place: Place) -> bool:
    """Upload, then record. The key contains the content, so a repeat rewrites the same object."""
    sha256 = hashlib.sha256(command.data)
    key = (
        f"logs/{place.attempt_id}/{place.lease_number}/{command.stream}/"
        f"{command.offset:020d}-{sha256.hexdigest()}"
    )
    if command.data:
        await services.objects.put(key, command.data, base64.b64encode(sha256.digest()).decode())
    if failpoints.ARMED:
        await failpoints.hit("log.after_put")
    settings = services.settings
    chunk = Chunk(
        ref_id=new_id(),
        artifact_id=new_id(),
        stream=command.stream,
        offset=command.offset,
        raw_size=len(command.data),
        byte_size=len(command.data),
        line_count=command.data.count(b"\n"),
        masked=False,
        raw_hmac=services.keys.mac_text(_PURPOSE, command.data),
        digest=f"sha256:{sha256.hexdigest()}",
        storage=settings.objects.storage,
        bucket=settings.objects.bucket,
        object_key=services.objects.full_key(key),
        final=command.final,
    )
    lease_key = key_of(command)
    fenced, accepted = await services.database.run(
        lambda conn: _record(conn, services, lease_key, chunk)
    )
    if failpoints.ARMED:
        await failpoints.hit("log.after_commit")
    if not fenced:
        await _look(services, command)
    if accepted:
        services.metrics.log_bytes.inc(len(command.data))
    return accepted


async def _record(
    conn: Connection, services: Services, key: Key, chunk: Chunk
) -> tuple[bool, bool]:
    outcome = await logs.record(conn, key, chunk, services.terms.lease_time, _grace(services))
    if failpoints.ARMED:
        await failpoints.hit("log.after_rows")
    return outcome


def mark_between(lease_number: int) -> bytes:
    """The line that readers get before the log of a further lease."""
    return f"--- lease {lease_number} ---\n".encode()


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a stream as it is read: an object of the store, or a mark of our own."""

    size: int
    object_key: str | None
    text: bytes = b""


def segments(parts: Sequence[Part]) -> list[Segment]:
    """The stream's pieces in reading order, a mark before every further lease."""
    pieces: list[Segment] = []
    lease_number = None
    for part in parts:
        if lease_number not in {None, part.lease_number}:
            mark = mark_between(part.lease_number)
            pieces.append(Segment(len(mark), None, mark))
        lease_number = part.lease_number
        pieces.append(Segment(part.byte_size, part.object_key))
    return pieces


async def read_segments(
    services: Services, pieces: Sequence[Segment], first: int, last: int
) -> AsyncIterator[bytes]:
    """The bytes from `first` to `last` inclusive, one object after the other, in bounded memory."""
    start = 0
    for piece in pieces:
        begin, end = max(first - start, 0), min(last - start, piece.size - 1)
        start += piece.size
        if begin > end:
            continue
        if piece.object_key is None:
            yield piece.text[begin : end + 1]
        else:
            async for data in services.objects.read(piece.object_key, begin, end):
                yield data


async def list_segments(services: Services, attempt_id: UUID, stream: str) -> list[Segment]:
    """The pieces of one stream of an attempt; empty if there is none yet."""
    parts = await services.database.run(lambda conn: logs.list_parts(conn, attempt_id, stream))
    return segments(parts)


def _from_base64(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("must be base64 text")  # noqa: TRY004 - pydantic turns this into a 422
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be standard base64 with padding") from None


class AppendLogMessage(commands.AppendLog):
    """`log.append` in JSON, where the bytes are base64."""

    data: Annotated[bytes, BeforeValidator(_from_base64)] = Field(
        validation_alias="data_base64", repr=False
    )
    """The raw bytes, in base64."""


def register(registry: Registry) -> None:
    """Register the handlers of this module."""

    @registry.handler(APPEND, AppendLogMessage, idempotent_by="offset")
    async def appended(context: Context, command: AppendLogMessage) -> None:
        await append_log(context.services, command)
