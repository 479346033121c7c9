"""What is written down and counted of every request to a receiver."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from app.callbacks.exchange import Answer
from app.callbacks.sender import Sent
from app.domain import jsontext
from app.domain.callbacks import DeliveryKind
from app.services import Services
from app.store.callback_log import Logged

_MAX_EXCERPT = 500


def logged(
    services: Services, kind: DeliveryKind, sent: Sequence[tuple[float, Sent]]
) -> list[Logged]:
    """The requests as lines of the log, in the order in which they began; counted as well."""
    now = monotonic()
    lines = []
    for began, one in sorted(sent, key=lambda pair: pair[0]):
        answer = one.answer
        services.metrics.callback_deliveries.labels(kind.value, answer.result.value).inc()
        services.metrics.callback_seconds.observe(answer.seconds)
        single = one.events[0] if len(one.events) == 1 else None
        lines.append(
            Logged(
                kind=kind,
                webhook_id=one.webhook_id,
                event_ids=tuple(event.id for event in one.events),
                attempt_id=None if single is None else single.attempt_id,
                event_number=None if single is None else single.event_number,
                ago_seconds=now - began,
                milliseconds=round(answer.seconds * 1000),
                result=answer.result,
                status=answer.status,
                detail=answer.detail,
                excerpt=excerpt(services, answer),
            )
        )
    return lines


def excerpt(services: Services, answer: Answer) -> str:
    """The beginning of what a receiver said that did not accept: masked, then cut."""
    if answer.accepted or not answer.excerpt:
        return ""
    text = jsontext.clean(answer.excerpt.decode(errors="replace"))
    masked, _ = services.masker.mask_text(text)
    return jsontext.cut(masked, _MAX_EXCERPT)
