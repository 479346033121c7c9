"""Whatever a caller brings as text is masked before a command is carried out, and then cut.

What a runner reports is masked, for its outcome must be stored. What names or describes work (keys,
specifications, ids) is refused instead: a masked key would be another key.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

import structlog

from app.commands.leases import key_of
from app.domain import jsontext
from app.domain.commands import MAX_MESSAGE_BYTES, Command, UnderLease
from app.domain.errors import MaskingUnavailable, SecretInRequest
from app.domain.masking import EngineUnusable, Masker
from app.services import Services
from app.store.leaks import Leak

C = TypeVar("C", bound=Command)

_LOG = structlog.get_logger(__name__)
_IN_A_THREAD_FROM = 64 * 1024

Kinds = Counter[str]


async def masked_fields(
    services: Services, command: C, source: str, *names: str
) -> tuple[C, Kinds]:
    """The command with these fields masked; texts are cut to their limit after that.

    `source` says in the metric where it came from. The kinds and counts of what was masked are
    returned for the timeline.
    """
    given = {name: getattr(command, name) for name in names}
    sizes = sum(len(value) for value in given.values() if isinstance(value, str))
    if sizes > _IN_A_THREAD_FROM:
        masked, kinds = await asyncio.to_thread(_masked, services.masker, given)
    else:
        masked, kinds = _masked(services.masker, given)
    tell(services, source, kinds)
    changed = {name: value for name, value in masked.items() if value is not given[name]}
    return (command.model_copy(update=changed) if changed else command), kinds


def _masked(masker: Masker, given: Mapping[str, Any]) -> tuple[dict[str, Any], Kinds]:
    kinds: Kinds = Counter()
    masked: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, str):
            text, counts = masker.mask_text(value)
            masked[name] = jsontext.cut(text, MAX_MESSAGE_BYTES)
            kinds.update(counts.kinds)
        elif value:
            changed, counts = masker.mask_json(value)
            masked[name] = _of_its_shape(value, changed) if counts.count else value
            kinds.update(counts.kinds)
    return masked, kinds


def _of_its_shape(value: Any, masked: Any) -> Any:
    """A mapping stays one where the masker could only withhold the whole."""
    return masked if isinstance(masked, type(value)) else {"withheld": masked}


def tell(services: Services, source: str, kinds: Mapping[str, int]) -> None:
    """Count what was masked, and log that it was: never what."""
    for kind, count in kinds.items():
        services.metrics.secrets_masked.labels(source, kind).inc(count)
    if kinds:
        _LOG.warning("secret.masked", source=source, kinds=dict(kinds))


def leaks_in(command: UnderLease, kinds: Kinds, source: str) -> tuple[Leak, ...]:
    """What the timeline is to be told of this command: nothing, or one leak."""
    if not kinds:
        return ()
    return (Leak(key_of(command), source, dict(kinds), late=source == "completion"),)


def refuse_secrets(services: Services, as_spec: Any = None, **plain: Any) -> None:
    """Raise SecretInRequest with a pointer to everything in these values that looks like a secret.

    `as_spec` stands under `/job_spec_ref`; `plain` are values by their place in the request, whose
    texts alone are judged. Raises MaskingUnavailable where nothing can be told.
    """
    masker = services.masker
    try:
        pointers = [f"/job_spec_ref{pointer}" for pointer in masker.find_secrets_in_spec(as_spec)]
        for name, value in plain.items():
            pointers += [f"/{name}{place}" for place in _places(masker, value)]
    except EngineUnusable:
        raise MaskingUnavailable from None
    if pointers:
        raise SecretInRequest(
            [
                {"pointer": pointer, "detail": "looks like a secret; send a reference to it"}
                for pointer in pointers
            ]
        )


def _places(masker: Masker, value: Any) -> list[str]:
    """Pointers to the texts that look like secrets; a name that does is told by its number."""
    if isinstance(value, str):
        return [] if masker.is_clean_name(value) else [""]
    if isinstance(value, dict):
        found = []
        for number, (name, inner) in enumerate(value.items()):
            is_secret = not masker.is_clean_name(name)
            found += [f"/{number}"] if is_secret else []
            place = number if is_secret else name.replace("~", "~0").replace("/", "~1")
            found += [f"/{place}{rest}" for rest in _places(masker, inner)]
        return found
    if isinstance(value, list):
        return [
            f"/{number}{rest}"
            for number, inner in enumerate(value)
            for rest in _places(masker, inner)
        ]
    return []
