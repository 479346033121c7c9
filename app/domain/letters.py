"""What a dead letter keeps of its message, and whether that is enough to process it again.

Nothing may be stored that was not masked, and only what masking did not change is still the same
message. The lease token is never kept: who lost it sends the command again, with its own proof.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.domain.payloads import outline

MAX_KEPT_BYTES = 64 * 1024
PROOF = "lease_token"

Mask = Callable[[Any], Any]
"""A masked copy of a JSON value: equal to the value if there was no secret in it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """`payload`: JSON of the masked data, or of its form. `redrivable`: it is the whole message."""

    payload: str
    redrivable: bool


def keep(data: Any, mask: Mask, *, under_lease: bool = False) -> Kept:
    """What is stored of an envelope's `data`.

    If it is too large, only its form is kept. A command under a lease is never
    redrivable, whether its handler says so (`under_lease`) or its data holds a lease token.
    """
    if isinstance(data, dict) and PROOF in data:
        data = {name: value for name, value in data.items() if name != PROOF}
        under_lease = True
    masked = mask(data)
    text = json.dumps(masked)
    if len(text) > MAX_KEPT_BYTES:
        return Kept(outline(data), redrivable=False)
    return Kept(text, redrivable=not under_lease and same(masked, data))


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same text: 1 is not true, and not 1.0 either."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
