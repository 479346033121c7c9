"""Identifiers: UUIDv7 made here, so that a batch's ids are known before its statement."""

from __future__ import annotations

import os
import time
from uuid import UUID


def new_id() -> UUID:
    """A UUIDv7 (RFC 9562, section 5.7). The time inside is for index locality; never read it."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | (0x7 << 76)
    value = value & ~(0x3 << 62) | (0x2 << 62)
    return UUID(int=value)


def short(identifier: UUID | str) -> str:
    """The last eight hex digits, for people: UUIDv7 begins with the time, so heads collide."""
    return str(identifier).replace("-", "")[-8:]
