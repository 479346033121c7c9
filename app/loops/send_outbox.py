"""Sends what waits in the outbox: to the topic, or to the handlers of this process."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import structlog

from app import failpoints
from app.domain.envelope import VERSION, Envelope
from app.domain.errors import LeadershipLost, PublishFailed, ServiceError
from app.domain.sent import Deliver, Sent
from app.loops.loop import Result
from app.services import Services
from app.store import outbox
from app.store.outbox import Waiting
from app.topics import Message

_LOG = structlog.get_logger(__name__)
_BATCH = 500
_BATCH_BYTES = 4 * 1024 * 1024


class SendOutbox:
    """One pass sends a batch and only then forgets it.

    A message may go out twice, after a crash in between or by a leader that was replaced; both have
    the same envelope id, so whoever gets them knows them as one.
    """

    name = "send_outbox"
    interval_seconds = 0.5
    leader_only = True

    def __init__(self, deliver: Deliver) -> None:
        """`deliver`: where messages go when no topic is configured."""
        self._deliver = deliver

    async def run_once(self, services: Services) -> Result:
        """Send at most a batch. Raises PublishFailed if nothing of it could be sent."""
        waiting = await services.database.run(
            lambda conn: outbox.list_due(conn, _BATCH, _BATCH_BYTES)
        )
        if not waiting:
            return Result(0)
        if not services.leadership.is_held():
            raise LeadershipLost
        results = await self._send(services, waiting)
        if failpoints.ARMED:
            await failpoints.hit("outbox.after_publish")
        tried = [(one, r) for one, r in zip(waiting, results, strict=True) if r is not None]
        sent = [(one, result) for one, result in tried if result.word is not None]
        failed = [(one, result) for one, result in tried if result.word is None]
        await self._note(services, sent, failed)
        if failed and not sent:
            raise PublishFailed
        return Result(
            len(sent),
            more=len(tried) < len(waiting) or (not failed and len(waiting) == _BATCH),
            behind_seconds=max(one.age_seconds for one in waiting),
        )

    async def _send(self, services: Services, waiting: Sequence[Waiting]) -> Sequence[Sent | None]:
        topic = services.settings.scheduler.topic
        if topic is None:
            return await self._deliver([_envelope(one) for one in waiting])
        messages = [
            Message(_envelope_text(one), {"schedule": one.schedule, "to": one.to})
            for one in waiting
        ]
        try:
            ids = await services.publisher.publish(topic, messages)
        except ServiceError as error:
            _LOG.warning("outbox.not_published", reason=error.reason(), detail=error.detail)
            return [Sent(None, error.detail)] * len(waiting)
        return [Sent(message_id) for message_id in ids]

    async def _note(
        self,
        services: Services,
        sent: Sequence[tuple[Waiting, Sent]],
        failed: Sequence[tuple[Waiting, Sent]],
    ) -> None:
        if sent:
            await services.database.run(
                lambda conn: outbox.mark_sent(
                    conn, [one.id for one, _ in sent], [str(result.word) for _, result in sent]
                )
            )
            services.metrics.outbox_sent.inc(len(sent))
        if failed:
            await services.database.run(
                lambda conn: outbox.put_off(
                    conn, [one.id for one, _ in failed], [result.reason for _, result in failed]
                )
            )


def _envelope(one: Waiting) -> Envelope:
    return Envelope(VERSION, one.to, str(one.id), orjson.loads(one.data))


def _envelope_text(one: Waiting) -> bytes:
    """The envelope as JSON; `data` goes out as it was rendered."""
    head = orjson.dumps({"v": VERSION, "to": one.to, "id": str(one.id)})
    return head[:-1] + b',"data":' + one.data.encode() + b"}"
