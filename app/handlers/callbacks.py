"""What callers do with callback subscriptions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from uuid import UUID

import structlog

from app.callbacks import header_secrets, signing
from app.callbacks.header_secrets import SecretMissing
from app.callbacks.sender import Sent, versions
from app.domain import receivers
from app.domain.callbacks import DeliveryKind, Subscription
from app.domain.errors import (
    AttemptNotFound,
    CallbackSubscriptionNotFound,
    FeedCursorExpired,
    FeedEpochChanged,
    ReplayRunning,
    RequestInvalid,
    SigningKeyRetired,
    TooManySubscriptions,
)
from app.domain.feed import SKEW, Cursor, FeedEvent, start_of_epoch
from app.domain.ids import new_id
from app.domain.keys import KeyRetired
from app.domain.subscriptions import PutSubscription, ReplayEvents, RotateSecret
from app.handlers.callback_accounts import logged
from app.handlers.counting import counted
from app.handlers.masks import refuse_secrets
from app.services import Services
from app.store import attempts, callback_log, callbacks, feed
from app.store.callback_log import Delivery
from app.store.callbacks import Standing, Wanted
from app.store.database import Connection

_LOG = structlog.get_logger(__name__)
_MAX_BEHIND = 1000


@dataclass(frozen=True, slots=True)
class Shown:
    """A subscription as callers see it."""

    subscription: Subscription
    standing: Standing
    secret: str | None = None
    """Only where it was just made."""
    behind: int | None = None
    """How many events it has not got yet, counted up to 1000; None: not counted."""


async def put(services: Services, name: str, given: PutSubscription, by: str) -> tuple[Shown, bool]:
    """Create it, or set all of it; whether it was created.

    Raises RequestInvalid, SecretInRequest, TooManySubscriptions, or what `start` is refused for.
    """
    with counted(services.metrics, "callback.put"):
        wanted = _wanted(services, name, given)

        async def run(conn: Connection) -> bool:
            return await _put(conn, services, name, (given, wanted), by)

        created = await services.database.run(run)
        shown = await get(services, name)
    if created:
        _LOG.info("callback.created", subscription=name, by=by)
        return Shown(shown.subscription, shown.standing, _secret(services, shown)), True
    return shown, False


def _wanted(services: Services, name: str, given: PutSubscription) -> Wanted:
    """What is to be stored, after everything that can be judged without the database."""
    refuse_secrets(
        services, name=name, url=given.url or "", oidc_audience=given.oidc_audience or ""
    )
    faults: list[dict[str, str]] = []
    if given.url is not None:
        try:
            receivers.read(given.url, services.callbacks.rules)
        except ValueError as error:
            faults.append({"pointer": "/url", "detail": str(error)})
    headers = {header: named.secret_ref for header, named in given.headers.items()}
    for header, reference in headers.items():
        try:
            header_secrets.value_of(services.settings.callbacks, reference)
        except SecretMissing:
            place = header.replace("~", "~0")
            detail = "names no secret of this service that can be a header's value"
            faults.append({"pointer": f"/headers/{place}/secret_ref", "detail": detail})
    if faults:
        raise RequestInvalid(faults)
    return Wanted(
        url=given.url,
        topic=given.topic,
        event_types=given.event_types and sorted(given.event_types),
        operation_ids=given.operation_ids and sorted(given.operation_ids),
        job_types=given.job_types and sorted(given.job_types),
        headers=headers,
        oidc_audience=given.oidc_audience,
        max_batch=given.max_batch,
        timeout_seconds=given.timeout_seconds,
        pause_after_seconds=given.pause_after_seconds,
    )


async def _put(
    conn: Connection,
    services: Services,
    name: str,
    asked: tuple[PutSubscription, Wanted],
    by: str,
) -> bool:
    given, wanted = asked
    if await callbacks.find(conn, name, lock=True) is None:
        limit = services.settings.callbacks.max_subscriptions
        if await callbacks.count(conn) >= limit:
            raise TooManySubscriptions(limit=limit)
        begin = await _start(conn, given.start)
        if await callbacks.create(conn, name, wanted, services.keys.current, by, begin):
            return True
    await callbacks.replace(conn, name, wanted, by)
    return False


async def _start(conn: Connection, start: str) -> Cursor:
    """Where a subscription begins. Raises FeedCursorInvalid, …Expired or FeedEpochChanged."""
    if start == "now":
        return await feed.latest(conn)
    if start == "oldest":
        return await feed.oldest(conn)
    cursor = Cursor.decode(start)
    await feed.read(conn, cursor, 1)
    return cursor


def _secret(services: Services, shown: Shown) -> str:
    subscription = shown.subscription
    try:
        return signing.secret_of(services.keys, subscription.id, versions(subscription)[0])
    except KeyRetired:
        raise SigningKeyRetired from None


async def list_all(services: Services, after: str, limit: int) -> list[Shown]:
    """At most `limit` by name, above `after`."""
    found = await services.database.run(lambda conn: callbacks.list_standing(conn, after, limit))
    return [Shown(*one) for one in found]


async def get(services: Services, name: str, *, count: bool = False) -> Shown:
    """The subscription; with `count` how far behind it is. Raises CallbackSubscriptionNotFound."""
    found = await services.database.run(lambda conn: callbacks.list_standing(conn, "", 1, name))
    if not found:
        raise CallbackSubscriptionNotFound
    subscription, standing = found[0]
    behind = await _behind(services, subscription, standing) if count else None
    return Shown(subscription, standing, behind=behind)


async def _behind(services: Services, subscription: Subscription, standing: Standing) -> int | None:
    try:
        page = await services.database.run(
            lambda conn: feed.read(
                conn,
                standing.cursor,
                _MAX_BEHIND,
                types=subscription.event_types,
                operation_ids=subscription.operation_ids,
                job_types=subscription.job_types,
            )
        )
    except (FeedCursorExpired, FeedEpochChanged):
        return None
    return len(page.events)


async def remove(services: Services, name: str, by: str) -> None:
    """Remove it. Raises CallbackSubscriptionNotFound."""
    with counted(services.metrics, "callback.remove"):
        if not await services.database.run(lambda conn: callbacks.remove(conn, name)):
            raise CallbackSubscriptionNotFound
    _LOG.warning("callback.removed", subscription=name, by=by)


async def resume(services: Services, name: str, by: str) -> Shown:
    """Let it go on at once. Where its place is gone, it goes on at the oldest event there is.

    Raises CallbackSubscriptionNotFound.
    """
    with counted(services.metrics, "callback.resume"):
        shown = await get(services, name)
        identifier = shown.subscription.id

        async def run(conn: Connection) -> None:
            await callbacks.resume(conn, identifier)
            try:
                await feed.read(conn, shown.standing.cursor, 1)
            except FeedCursorExpired as error:
                await callbacks.move_on(conn, identifier, Cursor.decode(error.context["oldest"]))
            except FeedEpochChanged as error:
                await callbacks.move_on(conn, identifier, Cursor.decode(error.context["start"]))

        await services.database.run(run)
    _LOG.info("callback.resumed", subscription=name, by=by)
    return await get(services, name)


async def rotate(services: Services, name: str, given: RotateSecret, by: str) -> tuple[Shown, bool]:
    """Begin a new version of the secret, and show it; whether this very request did so before.

    Raises CallbackSubscriptionNotFound.
    """
    with counted(services.metrics, "callback.rotate"):
        overlap = timedelta(seconds=given.overlap_seconds)
        rotated = await services.database.run(
            lambda conn: callbacks.rotate(
                conn, name, given.request_id, services.keys.current, overlap, by
            )
        )
        shown = await get(services, name)
        secret = _secret(services, shown)
    if rotated:
        _LOG.warning("callback.rotated", subscription=name, by=by)
    return Shown(shown.subscription, shown.standing, secret), not rotated


async def replay(services: Services, name: str, given: ReplayEvents, by: str) -> tuple[Shown, bool]:
    """Have events sent again; whether this very request was given before.

    Raises CallbackSubscriptionNotFound, AttemptNotFound, ReplayRunning, or what the cursor is
    refused for.
    """
    with counted(services.metrics, "callback.replay"):
        shown = await get(services, name)

        async def run(conn: Connection) -> bool:
            return await _replay(conn, shown, given)

        begun = await services.database.run(run)
        now = await get(services, name)
        if not begun and now.standing.replay_request_id != given.request_id:
            raise ReplayRunning(replay_request_id=str(now.standing.replay_request_id))
    if begun:
        _LOG.info("callback.replay", subscription=name, by=by)
    return now, not begun


async def _replay(conn: Connection, shown: Shown, given: ReplayEvents) -> bool:
    identifier, until = shown.subscription.id, shown.standing.cursor
    if shown.standing.replay_request_id == given.request_id:
        return False
    if given.attempt_id is not None:
        if await attempts.find(conn, given.attempt_id) is None:
            raise AttemptNotFound
        return await callbacks.replay_attempt(conn, identifier, given.request_id, given.attempt_id)
    if given.created_after is not None:
        begin = await _start_at(conn, given.created_after.astimezone(UTC))
    else:
        begin = await _start(conn, given.after or "oldest")
    times = (given.created_after, given.created_before)
    return await callbacks.replay_range(conn, identifier, given.request_id, begin, until, times)


async def _start_at(conn: Connection, moment: datetime) -> Cursor:
    """A place that nothing created from this moment on comes before."""
    oldest = await feed.oldest(conn)
    return start_of_epoch(oldest.epoch, max(oldest.created_from + SKEW, moment) - SKEW)


async def test(services: Services, name: str, by: str) -> Sent:
    """Send an event that stands for nothing, now, whatever the subscription waits for.

    Raises CallbackSubscriptionNotFound.
    """
    with counted(services.metrics, "callback.test"):
        subscription = (await get(services, name)).subscription
        async with services.callbacks.target(subscription) as target:
            sent = await target.send([_test_event()])
            began = monotonic() - sent.answer.seconds
        log = logged(services, DeliveryKind.TEST, [(began, sent)])
        await services.database.run(lambda conn: callback_log.write(conn, subscription.id, log))
    _LOG.info("callback.tested", subscription=name, by=by, result=sent.answer.result.value)
    return sent


def _test_event() -> FeedEvent:
    nobody, now = UUID(int=0), datetime.now(UTC)
    return FeedEvent(
        id=new_id(),
        type="callback.test",
        timestamp=now,
        attempt_id=nobody,
        event_number=0,
        data="{}",
        operation_id=nobody,
        job_type="",
        cursor=start_of_epoch(1, now),
    )


async def list_deliveries(
    services: Services,
    name: str,
    before: tuple[datetime, UUID] | None,
    limit: int,
    *,
    accepted: bool | None,
) -> list[Delivery]:
    """At most `limit` requests that were made, newest first. Raises …NotFound."""
    subscription = (await get(services, name)).subscription
    return await services.database.run(
        lambda conn: callback_log.list_deliveries(
            conn, subscription.id, before, limit, accepted=accepted
        )
    )
