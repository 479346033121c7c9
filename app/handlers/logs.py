"""What `log.append` causes: mask, upload, then record under the lease's fence."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from app import failpoints
from app.commands.leases import key_of, refusal
from app.commands.logs import AppendRequest
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
from app.handlers.log_chunks import PURPOSE, Prepared, prepare
from app.handlers.masks import tell
from app.handlers.registry import Context, Registry
from app.services import Services
from app.store import diagnoses, logs, signals
from app.store.leaks import Leak
from app.store.logs import Chunk, Place, Recorded

APPEND = "log.append"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stream stands after an append.

    `need_more`: nothing was stored, since what was sent may be the beginning of a secret.
    `refused`: the places of the values to mask that were not looked for.
    """

    next_offset: int
    final: bool
    need_more: bool = False
    refused: Sequence[int] = ()


async def append_log(services: Services, command: commands.AppendLog) -> Position:
    """Append a chunk once, however often it is sent. Answers where the sender goes on.

    It is accepted up to the last place at which no secret can be split. Raises LogGap, LogConflict,
    LogStreamClosed, LogChunkTooLarge, LogLimitReached, or the fact that stands against the lease.
    Nothing is recorded that is not masked and durable in the store before.
    """
    with counted(services.metrics, APPEND):
        limit = services.settings.limits.max_log_chunk_bytes
        if len(command.data) > limit:
            raise LogChunkTooLarge(limit_bytes=limit)
        place = await _look(services, command)
        if not _is_new(command, place):
            return await _answer_repeat(services, command, place)
        if not command.data and not command.final:
            return Position(place.next_offset, place.final)
        return await _append(services, command, place)


async def _append(services: Services, command: commands.AppendLog, place: Place) -> Position:
    """Mask and store what fits below the attempt's limit; what does not is refused for good."""
    room = services.settings.limits.max_log_bytes_per_attempt - place.attempt_bytes
    fits = not command.data or (len(command.data) <= room and not place.attempt_truncated)
    data = command.data if fits else command.data[: 0 if place.attempt_truncated else max(room, 0)]
    final = command.final and fits
    prepared = await prepare(
        services.masker, services.keys, data, command.exact_values, final=final
    )
    refused = sorted({*prepared.counts.too_short, *prepared.counts.too_long})
    if failpoints.ARMED:
        await failpoints.hit("log.after_mask")
    if not prepared.accepted and not fits:
        raise await _truncated(services, command, place)
    if not prepared.accepted and data:
        return Position(place.next_offset, place.final, need_more=True, refused=refused)
    if await _store(services, command, place, prepared, final=final):
        services.signals.wake(signals.attempt(place.attempt_id))
        return Position(command.offset + prepared.accepted, final, refused=refused)
    return await _answer_repeat(services, command, await _look(services, command))


async def _truncated(
    services: Services, command: commands.AppendLog, place: Place
) -> LogLimitReached:
    """The refusal at the attempt's limit, once the log's readers are told of it."""
    limit = services.settings.limits.max_log_bytes_per_attempt
    if not place.truncated:
        key, terms = key_of(command), logs.Terms.of(services.settings.leases)
        await services.database.run(
            lambda conn: logs.truncate_once(conn, key, command.stream, limit, terms)
        )
        services.signals.wake(signals.attempt(place.attempt_id))
    return LogLimitReached(limit_bytes=limit, next_offset=place.next_offset)


async def _look(services: Services, command: commands.AppendLog) -> Place:
    key = key_of(command)
    place = await services.gathered.look_at_log.run((key, command.stream))
    if place is None:
        raise LeaseNotFound
    assert isinstance(place, Place)  # noqa: S101 - a look refuses nobody
    if not place.token_fits:
        raise LeaseTokenInvalid
    if not place.writable:
        found = await services.database.run(lambda conn: diagnoses.diagnose(conn, [key.lease_id]))
        raise refusal(key, found.get(key.lease_id))
    return place


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
        if not services.keys.mac_matches(raw_hmac, PURPOSE, same):
            raise LogConflict(stream_offset=ref.stream_offset, next_offset=place.next_offset)
    return Position(place.next_offset, place.final)


async def _store(
    services: Services,
    command: commands.AppendLog,
    place: Place,
    prepared: Prepared,
    *,
    final: bool,
) -> bool:
    """Upload, then record. The key contains the content, so a repeat rewrites the same object."""
    key = (
        f"logs/{place.attempt_id}/{place.lease_number}/{command.stream}/"
        f"{command.offset:020d}-{prepared.sha256.hex()}"
    )
    if prepared.data:
        await services.objects.put(key, prepared.data, prepared.sha256_base64)
    if failpoints.ARMED:
        await failpoints.hit("log.after_put")
    chunk = _chunk(services, command, prepared, key, final=final)
    lease_key, told = key_of(command), dict(prepared.told)
    leak = Leak(lease_key, command.stream, told, late=True) if told else None
    outcome = await services.gathered.append.run(AppendRequest(lease_key, chunk, leak))
    assert isinstance(outcome, Recorded)  # noqa: S101 - none is refused by an error
    if failpoints.ARMED:
        await failpoints.hit("log.after_commit")
    if not outcome.fenced:
        await _look(services, command)
    if outcome.accepted:
        services.metrics.log_bytes.inc(len(prepared.data))
        tell(services, command.stream, prepared.counts.kinds)
    return outcome.accepted


def _chunk(
    services: Services, command: commands.AppendLog, prepared: Prepared, key: str, *, final: bool
) -> Chunk:
    objects = services.settings.objects
    return Chunk(
        ref_id=new_id(),
        artifact_id=new_id(),
        stream=command.stream,
        offset=command.offset,
        raw_size=prepared.accepted,
        byte_size=len(prepared.data),
        line_count=prepared.line_count,
        raw_hmac=prepared.raw_hmac,
        digest=f"sha256:{prepared.sha256.hex()}",
        storage=objects.storage,
        bucket=objects.bucket,
        object_key=services.objects.full_key(key),
        final=final,
    )


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
